"""Hold one record of a call against another, value by value, in the order of execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import torch

from ostinato.loop.observe import Unit
from ostinato.parity.aligner import CallRecord
from ostinato.parity.tolerances import EXACT, Errors, Tolerance, measure, tap_tolerance
from ostinato.parity.values import tensors

OUTPUT = "out."
"""What begins the name of an op's output, where the values inside it are named by module."""


class Verdict(StrEnum):
    """What a comparison found. missing: expected and not there; additional: the other way."""

    WITHIN = "within"
    BEYOND = "beyond"
    MISSING = "missing"
    ADDITIONAL = "additional"
    SHAPE = "other shape"


class ValueKey(NamedTuple):
    """A value within a call."""

    name: str
    occurrence: int


ToleranceOf: TypeAlias = Callable[[str, int, torch.dtype], Tolerance]
"""Takes a value's name, its depth within the call and the dtype it was computed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One value of one call. errors: None where there was nothing to subtract."""

    unit: Unit
    component: str
    op: str
    tap: str
    occurrence: int
    verdict: Verdict
    detail: str
    errors: Errors | None = None
    tolerance: Tolerance | None = None

    @property
    def diverged(self) -> bool:
        """Whether this value is not what it had to be."""
        return self.verdict is not Verdict.WITHIN

    def describe(self) -> str:
        """Say where and by how much, in one line."""
        place = (
            f"tap {self.tap!r} (occurrence {self.occurrence}) of {self.component}.{self.op}, "
            f"step {self.unit.step} of node {self.unit.node!r}"
        )
        return f"{place}: {self.detail}"


def compare_call(
    found: CallRecord, expected: CallRecord, tolerance_of: ToleranceOf = tap_tolerance
) -> Iterator[Comparison]:
    """Compare taps, then outputs, of two records of one call.

    Values that either side lacks are reported where the other one has them.
    """
    theirs, depth = dict(values_of(expected)), _depths(found)
    for key, value in values_of(found):
        tolerance = tolerance_of(key.name, depth.get(key.name, 0), value.dtype)
        yield _compared(found, key, value, theirs.pop(key, None), tolerance)
    for key in theirs:
        yield _absent(found, key, Verdict.MISSING, "it was expected, and was not computed")


def compare_exact(found: CallRecord, expected: CallRecord) -> Iterator[Comparison]:
    """Compare two records of one call that must agree in every bit."""
    return compare_call(found, expected, lambda name, depth, dtype: EXACT)


def first_divergence(comparisons: Iterable[Comparison]) -> Comparison | None:
    """Return the first value, in the order given, that diverged."""
    return next((comparison for comparison in comparisons if comparison.diverged), None)


def values_of(record: CallRecord) -> Iterator[tuple[ValueKey, torch.Tensor]]:
    """Yield taps in the order computed, then the outputs."""
    for tap in record.taps:
        yield ValueKey(tap.name, tap.occurrence), tap.value
    for path, value in tensors(record.outputs):
        yield ValueKey(OUTPUT + path, 0), value


def _depths(record: CallRecord) -> dict[str, int]:
    """Number the names of a call's values by when each first came."""
    names = dict.fromkeys(tap.name for tap in record.taps)
    depth = {name: index for index, name in enumerate(names)}
    return depth | {OUTPUT + path: len(names) for path, _ in tensors(record.outputs)}


def _compared(
    call: CallRecord,
    key: ValueKey,
    value: torch.Tensor,
    expected: torch.Tensor | None,
    tolerance: Tolerance,
) -> Comparison:
    if expected is None:
        return _absent(call, key, Verdict.ADDITIONAL, "it was computed, and was not expected")
    if value.shape != expected.shape:
        detail = f"its shape is {list(value.shape)}, expected {list(expected.shape)}"
        return _absent(call, key, Verdict.SHAPE, detail)
    errors = measure(value, expected)
    within = tolerance.allows(errors)
    bound = tolerance.largest if tolerance.absolute is None else tolerance.absolute
    return Comparison(
        unit=call.unit,
        component=call.component,
        op=call.op,
        tap=key.name,
        occurrence=key.occurrence,
        verdict=Verdict.WITHIN if within else Verdict.BEYOND,
        detail=f"largest error {errors.absolute:.3g}, {errors.largest:.3g} of the largest value, "
        f"rms {errors.rms:.3g}; allowed {bound:.3g} and rms {tolerance.rms:.3g} "
        f"({tolerance.reason})",
        errors=errors,
        tolerance=tolerance,
    )


def _absent(call: CallRecord, key: ValueKey, verdict: Verdict, detail: str) -> Comparison:
    return Comparison(
        unit=call.unit,
        component=call.component,
        op=call.op,
        tap=key.name,
        occurrence=key.occurrence,
        verdict=verdict,
        detail=detail,
    )
