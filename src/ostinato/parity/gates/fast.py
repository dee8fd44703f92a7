"""Fast: requests that share forwards outside the exact rules stay within what their card declares.

Time is measured beside it, for whoever has to choose; it decides nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, cast

import torch

from ostinato.backend.batch_rules import ToleranceRules, probe_batch_rules
from ostinato.errors import InvalidCard
from ostinato.loop.batch import Inputs, Stackable
from ostinato.loop.contract import Component
from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.gates.company import ShuffledTurns, verdict
from ostinato.parity.subject import Subject
from ostinato.parity.tolerances import Errors, Tolerance, measure
from ostinato.request import Request
from ostinato.runtime import Batching, Output
from ostinato.tasks import OutputName

NAME = "fast"
_SEED = 20261201
_FEW, _TIMED_ITEMS = 4, 8


class _Size(NamedTuple):
    """Pixels and frames of a clip."""

    height: int
    width: int
    num_frames: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}, {self.num_frames} frames"


class _Found(NamedTuple):
    """The latents of one request in company, against those it gave alone."""

    size: _Size
    batch: int
    errors: Errors

    @property
    def worst(self) -> float:
        """The larger relative error; infinite for NaN, which no error is worse than."""
        errors = (self.errors.largest, self.errors.rms)
        return math.inf if any(map(math.isnan, errors)) else max(errors)


def fast(subject: Subject) -> GateResult:
    """Serve 2 to 16 requests of mixed timesteps and guidance under `Batching.FAST`.

    Once at the size of the other gates and once at the least that the card takes, where requests
    bring the fewest rows. A card that offers no fast batching is held to bytes. Raises InvalidCard
    for a tolerance that is no bound, NothingMeasured where no forward was shared.
    """
    tolerance = subject.card.fast_batch_tolerance
    if tolerance is None:
        return _not_offered(subject)
    if not 0.0 <= tolerance < math.inf:
        raise InvalidCard(
            f"the card declares a fast batch tolerance of {tolerance!r}; expected a finite number "
            "of at least 0"
        )
    counts = (2, 4) if subject.options.quick else (2, 3, 8, 16)
    found, steps = list[_Found](), 0
    with subject.serving(ShuffledTurns(_SEED), max_batch=max(counts), batching=Batching.FAST) as (
        engine,
        _,
    ):
        for size in _sizes(subject):
            asked = _requests(subject, size, max(counts))
            alone = subject.alone(asked)
            outputs = {count: engine.run(asked[:count]) for count in counts}
            shared = sum(o.provenance.fast_steps for got in outputs.values() for o in got)
            if shared == 0:
                raise NothingMeasured(f"no forward was shared at {size}; expected some")
            steps += shared
            found += [f for n, got in outputs.items() for f in _compared(size, n, got, alone)]
    return _judged(subject, tolerance, found, steps, counts)


def _judged(
    subject: Subject, tolerance: float, found: Sequence[_Found], steps: int, counts: Sequence[int]
) -> GateResult:
    bound = Tolerance(largest=tolerance, rms=tolerance, reason="what the card declares")
    beyond = [each for each in found if not bound.allows(each.errors)]
    worst = max(found, key=lambda each: each.worst)
    told = f"{len(found) - len(beyond)} of {len(found)} latents are within {tolerance:g} of those "
    told += f"made alone, the worst {worst.worst:.2g} off (one of {worst.batch} at {worst.size}); "
    timed = _timed(subject)
    return GateResult(
        name=NAME,
        rung=Rung.SERVING,
        passed=not beyond,
        measured=len(found),
        worst_relative_error=worst.worst,
        message=f"{told}{steps} steps shared a forward; {timed.describe()}",
        detail={
            "batches": list(counts),
            "tolerance": tolerance,
            "fast_steps": steps,
            "latents_equal": sum(each.worst == 0.0 for each in found),
            "timed_size": list(timed.size),
            "timed_items": _TIMED_ITEMS,
            "exact_rules_allow_it": timed.exact,
            "alone_s_per_item": timed.alone_s,
            "fast_s_per_item": timed.fast_s,
            "fast_over_alone": timed.fast_s / timed.alone_s,
        },
    )


def _not_offered(subject: Subject) -> GateResult:
    """Hold a card without a tolerance to what it then gets: exact batching, and so its bytes."""
    size = _sizes(subject)[-1]
    asked = _requests(subject, size, _FEW)
    turns = ShuffledTurns(_SEED)
    with subject.serving(turns, max_batch=_FEW, batching=Batching.FAST) as (engine, _):
        outputs = engine.run(asked)
    steps = sum(output.provenance.fast_steps for output in outputs)
    weights = subject.card.precision.weights
    why = f"; fast batching is not offered: the card declares no tolerance in {weights}"
    result = verdict(
        subject, NAME, outputs, subject.alone(asked), {"tolerance": None, "fast_steps": steps}, why
    )
    return replace(result, passed=result.passed and steps == 0)


def _compared(
    size: _Size, batch: int, got: Sequence[Output], alone: Sequence[Output]
) -> list[_Found]:
    pairs = zip(got, alone[:batch], strict=True)
    return [_Found(size, batch, measure(one.latents, other.latents)) for one, other in pairs]


def _sizes(subject: Subject) -> tuple[_Size, ...]:
    """Return the ordinary size, and the least where it is another one."""
    caps, ordinary = subject.card.capabilities, subject.request()
    named = (ordinary.height, ordinary.width, ordinary.num_frames)
    given = [pixels for pixels in named if pixels is not None]
    assert len(given) == len(named), "the room's requests leave no size out"
    least = [each.nearest(0)[0] for each in (caps.height, caps.width, caps.num_frames)]
    return tuple(dict.fromkeys((_Size(*given), _Size(*least))))


def _requests(subject: Subject, size: _Size, count: int) -> list[Request]:
    asked = {**size._asdict(), "outputs": (OutputName.LATENTS,)}
    return [subject.request(index, **asked) for index in range(count)]


class _Timed(NamedTuple):
    """What a stack takes at the least size. exact: whether exact rules allow it here."""

    size: _Size
    alone_s: float
    fast_s: float
    exact: bool

    def describe(self) -> str:
        """Say it in one clause."""
        rules = "allow" if self.exact else "refuse"
        return (
            f"at {self.size} a stack of {_TIMED_ITEMS} takes {self.fast_s / self.alone_s:.2f} of "
            f"{_TIMED_ITEMS} calls (exact rules {rules} it here)"
        )


def _timed(subject: Subject) -> _Timed:
    """Time the call that a served request makes most often: stacked, and one after the other.

    In turns, so that both meet the same neighbours of the machine. Raises NothingMeasured where no
    call of a denoiser can be stacked.
    """
    size = _sizes(subject)[-1]
    component, op, inputs = _busiest(subject, size)
    dtype = cast("torch.dtype", getattr(torch, subject.card.precision.weights))
    items = [inputs] * _TIMED_ITEMS
    alone, stacked = list[float](), list[float]()
    with subject.cpu(), torch.no_grad():
        exact = component.op_stacked(op, probe_batch_rules())(items) is not None
        run, stack = component.op(op), component.op_stacked(op, ToleranceRules(dtype=dtype))
        for _ in range(4 if subject.options.quick else 8):
            started = time.perf_counter()
            for each in items:
                run(**each)
            between = time.perf_counter()
            stack(items)
            alone.append((between - started) / _TIMED_ITEMS)
            stacked.append((time.perf_counter() - between) / _TIMED_ITEMS)
    # The first round warms up.
    return _Timed(size, statistics.median(alone[1:]), statistics.median(stacked[1:]), exact)


class _StackableComponent(Component, Stackable, Protocol):
    """A component whose ops run alone and stacked."""


def _busiest(subject: Subject, size: _Size) -> tuple[_StackableComponent, str, Inputs]:
    """Return the stackable op that a request of this size calls most often, and its last inputs."""
    resident, inputs = subject.resident(), dict[tuple[str, str], list[Inputs]]()
    for call in subject.record(_requests(subject, size, 1)[0]).calls:
        found = resident.component(call.component)
        if isinstance(found, Stackable) and call.op in found.stacked_ops:
            inputs.setdefault((call.component, call.op), []).append(call.inputs)
    if not inputs:
        raise NothingMeasured(f"no call at {size} can be stacked; expected one with `stacked_ops`")
    name, op = max(inputs, key=lambda key: len(inputs[key]))
    return cast("_StackableComponent", resident.component(name)), op, inputs[name, op][-1]
