"""What the batch rules mean, in words: for each operation, and for each family of models."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ostinato.backend.batch_rules import NEVER, BatchRules, Finding
from ostinato.card import ModelSource
from ostinato.errors import OstinatoError
from ostinato.request import Request
from ostinato.runtime import Engine, Stacking
from ostinato.runtime.scheduler import Around, FairShare, Rank, Ready, Snapshot
from ostinato.tasks import OutputName


class Setting(NamedTuple):
    """What a table was measured with."""

    dtype: torch.dtype
    threads: int

    def describe(self) -> str:
        """Say it in two words, as a column's head does."""
        return f"{str(self.dtype).removeprefix('torch.')} t{self.threads}"


_ALONE, _FREELY = "one request at a time", "stacked freely"
_PROMPT = "a red circle"

# What follows for exact execution where calls do not agree. Convolutions run request by request
# anyway: what a table says of them is why.
_CONSEQUENCES = (
    ("linear", "fewer rows are padded, or run request by request"),
    ("linear, many rows", "nothing is stacked"),
    ("linear, one output", "such layers run request by request"),
    ("linear, odd width", "such layers run request by request"),
    ("activation", "layers of other widths run request by request"),
    ("attention", "blocks run request by request"),
    ("attention, masked", "runs request by request"),
    ("attention, biased", "runs request by request"),
    ("attention by products", "text encoders run request by request"),
    ("layer norm", "blocks run request by request"),
    ("RMS norm", "blocks run request by request"),
    ("group norm", "runs request by request"),
    ("conv2d 3x3", "codecs run request by request"),
    ("conv2d patch", "patches are embedded request by request"),
    ("conv3d 3x3x3, causal", "codecs run request by request"),
    ("conv3d patch", "patches are embedded request by request"),
    ("conv1d", "runs request by request"),
    ("keys in another order", "keys are read in one order everywhere"),
    ("keys padded and masked", "nothing is padded: only equal shapes are stacked"),
    ("weights at odd offsets", "weights are moved to 64-byte boundaries as they are loaded"),
    ("inputs at odd offsets", "rows are multiples of 64 bytes where samples are cut from a stack"),
)


class _OnceAllAreThere(Around):
    """Fair share that begins when it is told to, so that neither request gets ahead."""

    def __init__(self) -> None:
        super().__init__(FairShare())
        self._begun = threading.Event()

    def begin(self) -> None:
        """Let turns be taken."""
        self._begun.set()

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Rank as fair share does, once there is leave."""
        self._begun.wait()
        return super().rank(ready, snapshot)


def rule_lines(rules: BatchRules) -> tuple[tuple[str, str], ...]:
    """Return each operation and what it needs for a stack to have the bits of its samples."""
    rows, multiple = rules.linear_rows, rules.activation_multiple
    verdicts = (
        ("attention", rules.attention),
        ("norms", rules.norms),
    )
    return (
        ("linear", _ALONE if rows == NEVER else f"at least {_counted(rows, 'row')} a request"),
        (
            "activations",
            _ALONE if multiple == NEVER else f"multiples of {_counted(multiple, 'element')} a row",
        ),
        *((name, _FREELY if free else _ALONE) for name, free in verdicts),
    )


def family_line(source: ModelSource | None, rules: BatchRules) -> str:
    """Say what an engine with `max_batch` above 1 does with concurrent requests of a family.

    source: the family's shipped model, which is served; None where it has none or the files are
    damaged. rules: of the threads that the model gets, named where nothing is stacked.
    """
    if source is None:
        if NEVER in (rules.linear_rows, rules.activation_multiple) or not rules.norms:
            return f"request by request: {_hindrance(rules)}"
        return (
            f"stacked from {_counted(rules.linear_rows, 'token')} a request on, in models whose "
            f"widths are multiples of {rules.activation_multiple} and whose own shapes agree when "
            "they are first stacked"
        )
    try:
        shared = _shared_steps(source)
    except OstinatoError as error:
        return f"could not be served: {error}"
    if shared:
        return f"stacked: two small requests shared {_counted(shared, 'forward')}"
    return f"request by request: two small requests shared no forward; {_hindrance(rules)}"


def _shared_steps(source: ModelSource) -> int:
    """Serve two requests at once, at the model's own size, and return how many steps they shared.

    The engine is asked, since only a component knows what it stacks.
    """
    card = source.card
    pinned = card.recipe.assumes_schedule.num_inference_steps
    request = Request(
        model=card.model_id,
        task=card.defaults.task,
        prompt=_PROMPT,
        num_inference_steps=min(pinned or (card.capabilities.num_inference_steps.minimum,)),
        outputs=(OutputName.LATENTS,),
    )
    turns = _OnceAllAreThere()
    with Engine(turns, max_batch=2, stacking=Stacking.ALWAYS) as engine:
        engine.add(source)
        try:
            handles = [engine.submit(request), engine.submit(replace(request, seed=1))]
        finally:
            turns.begin()
        return max(handle.result().provenance.stacked_steps for handle in handles)


def findings_table(
    findings: Mapping[Setting, Sequence[Finding]],
) -> list[tuple[str, ...]]:
    """Return one row an operation, a column a setting, and what follows in float32."""
    rows = [("OPERATION", *(setting.describe().upper() for setting in findings), "WHAT FOLLOWS")]
    for op, consequence in _CONSEQUENCES:
        of_op = {s: [f for f in found if f.op == op] for s, found in findings.items()}
        exact = [f for s, found in of_op.items() if s.dtype == torch.float32 for f in found]
        follows = "" if all(f.equal for f in exact) else consequence
        rows.append((op, *(_cell(op, found) for found in of_op.values()), follows))
    return rows


def _cell(op: str, found: Sequence[Finding]) -> str:
    """Say how a setting fared: equal, from which count on, or at how many shapes not."""
    differing = [finding for finding in found if not finding.equal]
    if not differing:
        return "equal"
    largest = max(finding.largest_difference for finding in differing)
    needs = max(finding.needs for finding in differing)
    if needs == NEVER:
        return f"{len(differing)} of {len(found)} differ, {largest:.0e}"
    return f"from {needs} rows" if op.startswith("linear") else f"multiples of {needs}"


def _hindrance(rules: BatchRules) -> str:
    return "; ".join(f"{name}: {told}" for name, told in rule_lines(rules) if told != _FREELY)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
