"""What a call costs: predicted device-seconds, the one currency of the scheduler.

A prediction starts from an estimate of operations and bytes, is scaled by what the device was seen
to do, then fitted for each op over the shapes that it ran at, and ends as the median of what this
very shape took. Medians of a short window bear outliers and follow a drift.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ostinato.work._fit import Coefficients, Point, fit_non_negative

WINDOW = 16  # so nine new measurements outvote the old ones
_MIN_POINTS = 3  # distinct amounts of work; fewer cannot tell a fixed cost from a slope
_FAR = 4.0  # a fit is not trusted further than this from the scaled estimate


class CostKey(NamedTuple):
    """What a measurement is of.

    component: `model_id/component`. form: the shapes and scalars of a call, as text. items: calls
    that were stacked into one.
    """

    component: str
    op: str
    form: str
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """An estimate of one call: floating-point operations, bytes of weights and of activations."""

    flops: float
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0

    def times(self, items: int) -> OpWork:
        """Return the work of `items` stacked calls: weights are read once."""
        return OpWork(
            flops=items * self.flops,
            weight_bytes=self.weight_bytes,
            activation_bytes=items * self.activation_bytes,
        )

    @property
    def num_bytes(self) -> float:
        """Bytes that move."""
        return self.weight_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a device is assumed to do before anything was measured on it.

    flops_per_s, bytes_per_s: sustained. overhead_s: seconds of a call that does nothing.
    """

    flops_per_s: float = 5e10
    bytes_per_s: float = 1e10
    overhead_s: float = 1e-4

    def seconds(self, work: OpWork) -> float:
        """Return the estimate; operations and bytes do not overlap."""
        return self.overhead_s + work.flops / self.flops_per_s + work.num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is kept of one key: its work and its last `WINDOW` durations in seconds."""

    key: CostKey
    work: OpWork
    seconds: tuple[float, ...]


class _Cell:
    """The durations of one key; their median is renewed as they come."""

    def __init__(self, work: OpWork) -> None:
        self.work = work
        self.seconds: deque[float] = deque(maxlen=WINDOW)
        self.median = 0.0

    def add(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.median = median(self.seconds)


class CostModel:
    """Predicts and learns; not safe for use from several threads at once."""

    def __init__(self, rates: DeviceRates | None = None, measured: Iterable[Measured] = ()) -> None:
        """Start from rates, or from what an earlier process measured on the same device."""
        self._rates = rates or DeviceRates()
        self._ops: dict[tuple[str, str], dict[CostKey, _Cell]] = {}
        self._fits: dict[tuple[str, str], Coefficients | None] = {}
        self._scales: dict[tuple[str, str], float] = {}
        self._device_scale: float | None = None
        for entry in measured:
            for seconds in entry.seconds:
                self.observe(entry.key, entry.work, seconds)

    def predict(self, key: CostKey, work: OpWork) -> float:
        """Return predicted device-seconds, above 0."""
        cell = self._ops.get(key[:2], {}).get(key)
        fitted = self._fitted(key, work) if cell is None or len(cell.seconds) < WINDOW else 0.0
        if cell is None:
            return fitted
        if not fitted:
            return cell.median
        # One measurement may be a cold one: it counts for two thirds, sixteen for nearly all.
        share = len(cell.seconds) / (len(cell.seconds) + 0.5)
        return math.exp(share * math.log(cell.median) + (1 - share) * math.log(fitted))

    def observe(self, key: CostKey, work: OpWork, seconds: float) -> None:
        """Learn what a call took; a duration that is not above 0 and finite is no measurement."""
        if not (0.0 < seconds < math.inf):
            return
        cells = self._ops.setdefault(key[:2], {})
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = _Cell(work)
        cell.add(seconds)
        self._fits.pop(key[:2], None)
        self._scales.pop(key[:2], None)
        self._device_scale = None

    def knows(self, key: CostKey) -> bool:
        """Whether this very key was measured."""
        return key in self._ops.get(key[:2], {})

    def measured(self) -> Iterator[Measured]:
        """Yield what is worth keeping for the next process."""
        for cells in self._ops.values():
            for key, cell in cells.items():
                yield Measured(key=key, work=cell.work, seconds=tuple(cell.seconds))

    def _fitted(self, key: CostKey, work: OpWork) -> float:
        op = key[:2]
        estimate = self._rates.seconds(work) * self._scale(op)
        if op not in self._fits:
            self._fits[op] = self._fit(op)
        found = self._fits[op]
        if found is None:
            return estimate
        seconds = found.at(work.flops, work.num_bytes)
        return min(max(seconds, estimate / _FAR), estimate * _FAR)

    def _fit(self, op: tuple[str, str]) -> Coefficients | None:
        cells = self._ops.get(op, {}).values()
        points = [Point(c.work.flops, c.work.num_bytes, c.median) for c in cells]
        if len({point[:2] for point in points}) < _MIN_POINTS:
            return None
        return fit_non_negative(points)

    def _scale(self, op: tuple[str, str]) -> float:
        """Return measured over estimated, for this op, else for all that the device ran."""
        if op not in self._scales:
            cells = self._ops.get(op, {}).values()
            self._scales[op] = median(map(self._ratio, cells)) if cells else self._any_scale()
        return self._scales[op]

    def _any_scale(self) -> float:
        if self._device_scale is None:
            ratios = [self._ratio(cell) for cells in self._ops.values() for cell in cells.values()]
            self._device_scale = median(ratios) if ratios else 1.0
        return self._device_scale

    def _ratio(self, cell: _Cell) -> float:
        return cell.median / self._rates.seconds(cell.work)
