"""What a gate is, and what it says.

Invariant: a gate that measured nothing has not passed. `passed` alone is never enough: the ladder
also holds `measured` against zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ostinato.errors import OstinatoError
from ostinato.parity.compare import Comparison
from ostinato.parity.subject import Subject


class Rung(StrEnum):
    """What a gate speaks of. files: what lies on disk and in memory. serving: company and time."""

    FILES = "files"
    C0 = "C0"
    C1 = "C1"
    C2 = "C2"
    C3 = "C3"
    C4 = "C4"
    SERVING = "serving"


class NothingMeasured(OstinatoError):
    """A gate had nothing to measure, which is a failure and never a pass."""

    code = "nothing_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict of one gate.

    measured: how many values, files or outputs were held against something. taps: how many of
    them were seen inside components. variants: outputs that had to equal the one made alone, and
    variants_equal: those that did. variants_tolerated: those that did not and are within what their
    card promises, which is then no bytes. bytes_compared: outputs whose bytes were held against
    goldens. worst_relative_error: over all that was compared with a tolerance. comparisons: the
    worst of each tap. flags: what becomes a figure of the report, 1 where it holds for every model
    that tells of it. detail: further facts.
    """

    name: str
    rung: Rung
    passed: bool
    measured: int
    message: str
    taps: int = 0
    variants: int = 0
    variants_equal: int = 0
    variants_tolerated: int = 0
    bytes_compared: int = 0
    worst_relative_error: float = 0.0
    comparisons: tuple[Comparison, ...] = ()
    flags: Mapping[str, bool] = field(default_factory=dict[str, bool])
    detail: Mapping[str, object] = field(default_factory=dict[str, object])


class Gate(Protocol):
    """One check of a model; raises NothingMeasured, or whatever its subject raises."""

    def __call__(self, subject: Subject) -> GateResult: ...


class Tally:
    """Counts comparisons, keeps the worst of each tap and the first that diverged."""

    def __init__(self) -> None:
        self.measured = 0
        self.taps = 0
        self.first: Comparison | None = None
        self.worst_relative_error = 0.0
        self._worst: dict[tuple[str, str, str], Comparison] = {}

    def add(self, comparisons: Iterable[Comparison]) -> None:
        """Take comparisons in the order of execution."""
        for comparison in comparisons:
            self.measured += not comparison.empty
            if comparison.diverged and self.first is None:
                self.first = comparison
            key = (comparison.component, comparison.op, comparison.tap)
            if key not in self._worst or comparison.severity > self._worst[key].severity:
                self._worst[key] = comparison
            # Whole levels are held by their own unit, and one of 255 is no relative error.
            errors, tolerance = comparison.errors, comparison.tolerance
            if errors is not None and tolerance is not None and tolerance.absolute is None:
                # max() would pass over NaN, which no error is worse than.
                largest = math.inf if math.isnan(errors.largest) else errors.largest
                self.worst_relative_error = max(self.worst_relative_error, largest)

    def result(self, name: str, rung: Rung, agreed: str) -> GateResult:
        """Return the verdict; agreed: what is said when nothing diverged.

        Raises NothingMeasured when nothing was compared.
        """
        if self.measured == 0:
            raise NothingMeasured("nothing was compared; expected at least one value")
        first = self.first
        return GateResult(
            name=name,
            rung=rung,
            passed=first is None,
            measured=self.measured,
            taps=self.taps,
            message=agreed if first is None else f"first divergence: {first.describe()}",
            worst_relative_error=self.worst_relative_error,
            comparisons=tuple(self._worst.values()),
            detail={} if first is None else {"first_divergence": first.describe()},
        )
