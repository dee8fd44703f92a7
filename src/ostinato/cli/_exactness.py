"""What the batch rules mean, in words: for each operation, and for each family of models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch

from ostinato.backend.batch_rules import NEVER, BatchRules, Finding
from ostinato.backend.checkpoint import read_config
from ostinato.backend.importing import load_object
from ostinato.card import ComponentSpec, ModelSource
from ostinato.loop.contract import ComponentAdapter
from ostinato.loop.facts import DenoiserFacts, LatentFacts


class Setting(NamedTuple):
    """What a table was measured with."""

    dtype: torch.dtype
    threads: int

    def describe(self) -> str:
        """Say it in two words, as a column's head does."""
        return f"{str(self.dtype).removeprefix('torch.')} t{self.threads}"


class _Sample(NamedTuple):
    tokens: int
    widths: tuple[int, ...]


_ALONE, _FREELY = "one request at a time", "stacked freely"

# What follows for exact execution where calls do not agree.
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


def rule_lines(rules: BatchRules) -> tuple[tuple[str, str], ...]:
    """Return each operation and what it needs for a stack to have the bits of its samples."""
    rows, multiple = rules.linear_rows, rules.activation_multiple
    verdicts = (
        ("attention", rules.attention),
        ("norms", rules.norms),
        ("conv2d", rules.conv2d),
        ("conv3d", rules.conv3d),
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
    """Say what `exact` execution does with concurrent requests of a family, and why.

    source: the family's shipped model, None where it has none or the files are damaged.
    """
    if source is None:
        counts = (rules.linear_rows, rules.activation_multiple)
        if NEVER in counts or not (rules.attention and rules.norms):
            return f"request by request: {_hindrance(rules)}"
        return (
            f"stacked from {_counted(rules.linear_rows, 'token')} a request on, in models whose "
            f"widths are multiples of {rules.activation_multiple}"
        )
    spec = _stacking(source)
    if spec is None:
        return "request by request: no component of it takes several requests at once"
    tokens, widths = _sample(source, spec)
    shape = f"{tokens} tokens, widths {' and '.join(map(str, widths))}"
    if rules.stacks(rows=tokens, widths=widths):
        return f"stacked: {shape}"
    return f"request by request: {shape}; {_hindrance(rules)}"


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


def _stacking(source: ModelSource) -> ComponentSpec | None:
    """Return the component that takes several requests at once (`ostinato.loop.batch`)."""
    stacking = (c for c in source.card.components if hasattr(load_object(c.adapter), "stacked_ops"))
    return next(stacking, None)


def _sample(source: ModelSource, spec: ComponentSpec) -> _Sample:
    """Return what the transformer takes for one call of a request by default."""
    card, config = source.card, read_config(source.folder / spec.subfolder)
    adapters = [(cast("ComponentAdapter", load_object(c.adapter)), c) for c in card.components]
    facts = [adapter.read_facts(source.folder, c) for adapter, c in adapters]
    patch = next(f.patch_size for f in facts if isinstance(f, DenoiserFacts))
    codec = next(f for f in facts if isinstance(f, LatentFacts))
    of_block = next((loop.options.get("frames_per_block") for loop in card.loops), None)
    defaults = card.defaults
    frames = of_block or codec.num_latent_frames(defaults.num_frames)
    sizes = (
        cast("int", frames),
        defaults.height // codec.spatial_stride,
        defaults.width // codec.spatial_stride,
    )
    heads, head_dim, ffn_dim = (
        cast("int", config[key]) for key in ("num_attention_heads", "attention_head_dim", "ffn_dim")
    )
    tokens = math.prod(size // step for size, step in zip(sizes, patch, strict=True))
    return _Sample(tokens, (heads * head_dim, ffn_dim))
