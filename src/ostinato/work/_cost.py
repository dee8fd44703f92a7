"""What a call costs: predicted device-seconds, the one currency of the scheduler.

A prediction starts from an estimate of operations and bytes, is scaled by what the device was seen
to do, then fitted for each op over the shapes that it ran at, and ends as the median of what this
very shape took. Medians of a short window bear outliers and follow a drift: fewer than a third of
wrong measurements, wherever they fall, change little, and nine of sixteen are a majority.

A device also slows down and recovers as a whole. Its pace is what its last measurements took
against what was known of their shapes; durations are kept as they would be at the pace 1, and
predicted at the present one, so a shape that did not run for a while is right when it comes back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from ostinato.work._fit import Coefficients, Point, fit_non_negative, local_ratio

WINDOW = 16  # so nine new measurements outvote the old ones
MAX_SHAPES = 128  # of an op; the one that was measured longest ago is forgotten first
_PACE_WINDOW = 9  # measurements, a median of which is the pace: five of them move it
_KNOWN = 8  # measurements of a shape from which on it tells the pace, not the pace what it is
_TELLING_S = 1e-3  # what takes less tells of overheads and not of the device
_MIN_POINTS = 3  # distinct amounts of work; fewer cannot tell a fixed cost from a slope
_FEW = 3  # measurements whose median stands without the fit
_FAR = 4.0  # a fit is not trusted further than this from the scaled estimate
_REFIT = 8  # measurements of known shapes until a fit is renewed; a new shape renews it at once
_SAME = 1e-6  # relative; works closer than this are one
_LEAST_S, _MOST_S = 1e-9, 1e9  # what is ever predicted
_MOST_WORK = 1e30  # operations or bytes; more is no estimate


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

    def resembles(self, other: OpWork) -> bool:
        """Whether two estimates are the same but for rounding."""
        return math.isclose(self.flops, other.flops, rel_tol=_SAME) and math.isclose(
            self.num_bytes, other.num_bytes, rel_tol=_SAME
        )


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


@dataclass(slots=True)
class _Shape:
    """The durations of one key; their median is renewed as they come."""

    work: OpWork
    given: OpWork | None = None  # the very object that was told last: who keeps it asks by it
    seconds: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))
    median: float = 0.0

    def add(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.median = median(self.seconds)

    def point(self) -> Point:
        count = len(self.seconds)
        weight = count / (count + 2.0)  # one measurement is worth half of many
        return Point(self.work.flops, self.work.num_bytes, self.median, weight)


class _Op:
    """What is known of one op: its shapes, the one measured last at the end, and a fit."""

    def __init__(self) -> None:
        self.shapes: dict[CostKey, _Shape] = {}
        self._fit: Coefficients | None = None
        self._points: dict[CostKey, Point] = {}
        self._until_refit = 0

    def add(self, key: CostKey, work: OpWork, seconds: float) -> None:
        shape = self.find(key, work)
        self.shapes.pop(key, None)
        if shape is None:
            shape, self._until_refit = _Shape(_sound(work)), 0
        shape.given = work
        shape.add(seconds)
        self.shapes[key] = shape
        self._until_refit -= 1
        if len(self.shapes) > MAX_SHAPES:
            del self.shapes[next(iter(self.shapes))]

    def find(self, key: CostKey, work: OpWork) -> _Shape | None:
        """Return the shape of a key; none where the key has come to mean other work."""
        shape = self.shapes.get(key)
        if shape is None or shape.given is work or shape.work.resembles(_sound(work)):
            return shape
        return None

    def fitted(self, key: CostKey, work: OpWork) -> float | None:
        """Return seconds by what other shapes took; None where they are too few to tell."""
        if self._until_refit <= 0:
            self._renew()
        if self._fit is None:
            return None
        others = [point for other, point in self._points.items() if other != key]
        ratio = local_ratio(others, self._fit, work.flops, work.num_bytes)
        return ratio * self._fit.at(work.flops, work.num_bytes)

    def _renew(self) -> None:
        self._until_refit = _REFIT
        self._points = {key: shape.point() for key, shape in self.shapes.items()}
        points = tuple(self._points.values())
        distinct = {point[:2] for point in points}
        self._fit = fit_non_negative(points) if len(distinct) >= _MIN_POINTS else None


class CostModel:
    """Predicts and learns; not safe for use from several threads at once."""

    def __init__(self, rates: DeviceRates | None = None, measured: Iterable[Measured] = ()) -> None:
        """Start from rates, or from what an earlier process measured on the same device."""
        self._rates = rates or DeviceRates()
        self._ops: dict[tuple[str, str], _Op] = {}
        self._pace = 1.0
        self._paces = deque((1.0,) * _PACE_WINDOW, maxlen=_PACE_WINDOW)
        for entry in measured:
            for seconds in entry.seconds:
                self._learn(entry.key, entry.work, seconds)

    def predict(self, key: CostKey, work: OpWork) -> float:
        """Return predicted device-seconds, above 0 and finite whatever the estimate says."""
        op = self._ops.get(key[:2])
        shape = op.find(key, work) if op is not None else None
        if shape is None:
            seconds = self._fitted(key, _sound(work))
        elif len(shape.seconds) >= _FEW:
            seconds = shape.median
        else:  # a first measurement may be a cold one: the fit counts as one more
            seconds = median((*shape.seconds, self._fitted(key, _sound(work))))
        return _within(self._pace * seconds)

    def observe(self, key: CostKey, work: OpWork, seconds: float) -> None:
        """Learn what a call took; a duration that is not above 0 and finite is no measurement."""
        if not 0.0 < seconds < math.inf:
            return
        op = self._ops.get(key[:2])
        shape = op.find(key, work) if op is not None else None
        if shape is not None and len(shape.seconds) >= _KNOWN and shape.median >= _TELLING_S:
            self._paces.append(_within(seconds) / shape.median)
            self._pace = median(self._paces)
        self._learn(key, work, _within(seconds) / self._pace)

    def num_measured(self, key: CostKey, work: OpWork) -> int:
        """Return how many measurements of this very call are kept, up to `WINDOW`."""
        op = self._ops.get(key[:2])
        shape = op.find(key, work) if op is not None else None
        return 0 if shape is None else len(shape.seconds)

    def settled(self, key: CostKey, work: OpWork) -> bool:
        """Whether this very call was measured so often that one more measurement changes little."""
        return self.num_measured(key, work) == WINDOW

    def prior(self, work: OpWork) -> float:
        """Return what is predicted where nothing was ever measured."""
        return _within(self._rates.seconds(_sound(work)))

    def measured(self) -> Iterator[Measured]:
        """Yield what is worth keeping for the next process, what is longest ago first."""
        for op in self._ops.values():
            for key, shape in op.shapes.items():
                seconds = tuple(_within(self._pace * each) for each in shape.seconds)
                yield Measured(key=key, work=shape.work, seconds=seconds)

    def _learn(self, key: CostKey, work: OpWork, seconds: float) -> None:
        if 0.0 < seconds < math.inf:
            op = self._ops.pop(key[:2], None) or _Op()
            op.add(key, work, _within(seconds))
            self._ops[key[:2]] = op

    def _fitted(self, key: CostKey, work: OpWork) -> float:
        """Return seconds of a shape by other shapes of its op, else by other ops; at pace 1."""
        op = self._ops.get(key[:2])
        estimate = self._rates.seconds(work) * self._scale(op)
        found = op.fitted(key, work) if op is not None else None
        if found is None:
            return estimate
        return min(max(found, estimate / _FAR), estimate * _FAR)

    def _scale(self, op: _Op | None) -> float:
        """Return measured over estimated: of an op, else of all that the device ran."""
        ops = self._ops.values() if op is None else (op,)
        ratios = [
            shape.median / self._rates.seconds(shape.work)
            for each in ops
            for shape in each.shapes.values()
        ]
        return median(ratios) if ratios else 1.0


def _sound(work: OpWork) -> OpWork:
    """Return an estimate that can be computed with: what is not an amount counts as nothing."""
    amounts = (work.flops, work.weight_bytes, work.activation_bytes)
    if all(amount == 0.0 or 1.0 <= amount <= _MOST_WORK for amount in amounts):
        return work
    flops, weights, activations = (
        min(amount, _MOST_WORK) if amount >= 1.0 else 0.0 for amount in amounts
    )
    return OpWork(flops=flops, weight_bytes=weights, activation_bytes=activations)


def _within(seconds: float) -> float:
    return min(max(seconds, _LEAST_S), _MOST_S)
