"""Hold one record of a call against another, value by value, in the order of execution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import torch

from ostinato.loop.observe import Unit
from ostinato.parity.aligner import CallRecord
from ostinato.parity.tolerances import EXACT, Errors, Tolerance, measure, tap_tolerance
from ostinato.parity.values import equal_bits, leaves, tensors

OUTPUT = "out."
"""What begins the name of an op's output, where the values inside it are named by module."""


class Verdict(StrEnum):
    """What a comparison found. missing: expected and not there; additional: the other way."""

    WITHIN = "within"
    BEYOND = "beyond"
    MISSING = "missing"
    ADDITIONAL = "additional"
    SHAPE = "other shape"
    DTYPE = "other dtype"
    KIND = "other kind"


class ValueKey(NamedTuple):
    """A value within a call."""

    name: str
    occurrence: int


ToleranceOf: TypeAlias = Callable[[str, int, torch.dtype], Tolerance]
"""Takes a value's name, its depth within the call and the dtype it was computed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One value of one call.

    errors: None where there was nothing to subtract. empty: a tensor without an element, which
    was met and not measured.
    """

    unit: Unit
    component: str
    op: str
    tap: str
    occurrence: int
    verdict: Verdict
    detail: str
    errors: Errors | None = None
    tolerance: Tolerance | None = None
    empty: bool = False

    @property
    def diverged(self) -> bool:
        """Whether this value is not what it had to be."""
        return self.verdict is not Verdict.WITHIN

    @property
    def severity(self) -> tuple[bool, float]:
        """What comparisons are ordered by: what diverged, then how much of a bound was used.

        Both bounds count, and an error of NaN or without a bound is infinite.
        """
        errors, tolerance = self.errors, self.tolerance
        if errors is None or tolerance is None:
            return self.diverged, math.inf if self.diverged else 0.0
        largest = (
            (errors.largest, tolerance.largest)
            if tolerance.absolute is None
            else (errors.absolute, tolerance.absolute)
        )
        return self.diverged, max(_share(*largest), _share(errors.rms, tolerance.rms))

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

    Values that either side lacks are reported where the other one has them; what is no tensor
    must be equal.
    """
    theirs, depth = dict(values_of(expected)), _depths(found)
    for key, value in values_of(found):
        if key not in theirs:
            what = "it was computed, and was not expected"
            yield _without_errors(found, key, Verdict.ADDITIONAL, what)
            continue
        other = theirs.pop(key)
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            tolerance = tolerance_of(key.name, depth.get(key.name, 0), value.dtype)
            yield compare_value(found, key, value, other, tolerance)
        else:
            yield _plain(found, key, value, other)
    for key in theirs:
        what = "it was expected, and was not computed"
        yield _without_errors(found, key, Verdict.MISSING, what)


def compare_exact(found: CallRecord, expected: CallRecord) -> Iterator[Comparison]:
    """Compare two records of one call that must agree in every dtype and bit."""
    return compare_call(found, expected, lambda name, depth, dtype: EXACT)


def compare_promised(
    found: CallRecord, expected: CallRecord, *, bitwise: bool
) -> Iterator[Comparison]:
    """Compare two records of one computation by what its card promises: bits, or a tolerance."""
    return compare_exact(found, expected) if bitwise else compare_call(found, expected)


def first_divergence(comparisons: Iterable[Comparison]) -> Comparison | None:
    """Return the first value, in the order given, that diverged."""
    return next((comparison for comparison in comparisons if comparison.diverged), None)


def values_of(record: CallRecord) -> Iterator[tuple[ValueKey, object]]:
    """Yield taps in the order computed, then the outputs, whatever their kind."""
    for tap in record.taps:
        yield ValueKey(tap.name, tap.occurrence), tap.value
    for path, value in leaves(record.outputs):
        yield ValueKey(OUTPUT + path, 0), value


def compare_value(
    call: CallRecord,
    key: ValueKey,
    value: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
) -> Comparison:
    """Compare one value of a call; under EXACT its dtype and bytes count, not its error."""
    if value.shape != expected.shape:
        detail = f"its shape is {list(value.shape)}, expected {list(expected.shape)}"
        return _without_errors(call, key, Verdict.SHAPE, detail)
    if tolerance is EXACT and value.dtype != expected.dtype:
        detail = f"it is {value.dtype}, expected {expected.dtype}"
        return _without_errors(call, key, Verdict.DTYPE, detail)
    errors = measure(value, expected)
    within = equal_bits(value, expected) if tolerance is EXACT else tolerance.allows(errors)
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
        empty=value.numel() == 0,
    )


def _depths(record: CallRecord) -> dict[str, int]:
    """Number the names of a call's values by when each first came."""
    names = dict.fromkeys(tap.name for tap in record.taps)
    depth = {name: index for index, name in enumerate(names)}
    return depth | {OUTPUT + path: len(names) for path, _ in tensors(record.outputs)}


def _plain(call: CallRecord, key: ValueKey, value: object, expected: object) -> Comparison:
    """Compare what is no tensor on one side at least: its kind, then its value."""
    if type(value) is not type(expected):
        detail = f"it is a {type(value).__name__}, expected a {type(expected).__name__}"
        return _without_errors(call, key, Verdict.KIND, detail)
    # As text, NaN equals itself and 0 is not -0.
    verdict = Verdict.WITHIN if repr(value) == repr(expected) else Verdict.BEYOND
    return _without_errors(call, key, verdict, f"it is {value!r}, expected {expected!r}")


def _without_errors(call: CallRecord, key: ValueKey, verdict: Verdict, detail: str) -> Comparison:
    return Comparison(
        unit=call.unit,
        component=call.component,
        op=call.op,
        tap=key.name,
        occurrence=key.occurrence,
        verdict=verdict,
        detail=detail,
    )


def _share(error: float, bound: float) -> float:
    if math.isnan(error):
        return math.inf
    return error / bound if bound else (math.inf if error else 0.0)
