"""From the shapes that an op was measured at to those that it was not.

A fit of fixed cost, operations and bytes, robust to points that are wrong, gives the level; the
measured shapes nearby then say by how much the fit is off there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

_ROUNDS = 6  # of reweighting; the weights have settled by then
_LEAST_RESIDUAL = 0.02  # relative; below it a point fits, and gains no more weight
_REACH = 1.0  # a shape of e times the work tells a third as much as one of the same work
_MOST_RATIO = 8.0  # of measured to fitted that a shape is believed
_DOUBT = 0.1  # what the fit itself weighs against the shapes nearby


class Point(NamedTuple):
    """One shape: operations, bytes, and the seconds that it took; weight: its measurements."""

    flops: float
    num_bytes: float
    seconds: float
    weight: float = 1.0


class Coefficients(NamedTuple):
    """seconds = fixed + per_flop * flops + per_byte * bytes."""

    fixed: float
    per_flop: float
    per_byte: float

    def at(self, flops: float, num_bytes: float) -> float:
        """Return seconds."""
        return self.fixed + self.per_flop * flops + self.per_byte * num_bytes


def fit_non_negative(points: Sequence[Point]) -> Coefficients | None:
    """Fit the relative error of points with coefficients of at least 0; None when nothing fits.

    Least absolute deviations by iteratively reweighted least squares (P. W. Holland, R. E. Welsch,
    Communications in Statistics 6 (1977)): a few points that are far off change nothing.
    """
    if not points:
        return None
    weights = [point.weight for point in points]
    found: Coefficients | None = None
    for _ in range(_ROUNDS):
        found = _least_squares(points, weights)
        if found is None:
            return None
        residuals = [abs(found.at(p.flops, p.num_bytes) / p.seconds - 1) for p in points]
        weights = [
            p.weight / max(residual, _LEAST_RESIDUAL)
            for p, residual in zip(points, residuals, strict=True)
        ]
    return found


def local_ratio(
    points: Sequence[Point], fit: Coefficients, flops: float, num_bytes: float
) -> float:
    """Return measured over fitted near an amount of work: a weighted geometric mean.

    The fit itself takes part with a ratio of 1, so that it stands where nothing was measured.
    """
    total, weights = 0.0, _DOUBT
    for point in points:
        distance = _apart(point.flops, flops) + _apart(point.num_bytes, num_bytes)
        weight = point.weight * math.exp(-distance / _REACH)
        fitted = max(fit.at(point.flops, point.num_bytes), point.seconds / _MOST_RATIO)
        total += weight * math.log(point.seconds / fitted)
        weights += weight
    return math.exp(total / weights)


def _apart(one: float, other: float) -> float:
    """Return the distance of two amounts as a natural logarithm."""
    if one == other:
        return 0.0
    return abs(math.log(one) - math.log(other)) if min(one, other) > 0 else math.inf


def _least_squares(points: Sequence[Point], weights: Sequence[float]) -> Coefficients | None:
    """Solve every subset of the unknowns and take the best one that is nowhere negative.

    For three unknowns that is exact non-negative least squares.
    """
    rows = [(1.0 / p.seconds, p.flops / p.seconds, p.num_bytes / p.seconds) for p in points]
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(3)]  # ten powers of ten apart
    rows = [tuple(v / s for v, s in zip(row, scale, strict=True)) for row in rows]
    gram = [
        [sum(w * r[i] * r[j] for w, r in zip(weights, rows, strict=True)) for j in range(3)]
        for i in range(3)
    ]
    right = [sum(w * r[i] for w, r in zip(weights, rows, strict=True)) for i in range(3)]
    best: tuple[float, list[float]] | None = None
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            solution = _solve(gram, right, chosen)
            if solution is None or min(solution) < 0:
                continue
            gain = sum(solution[i] * right[index] for i, index in enumerate(chosen))
            if best is None or gain > best[0]:
                values = [0.0, 0.0, 0.0]
                for i, index in enumerate(chosen):
                    values[index] = solution[i] / scale[index]
                best = gain, values
    return Coefficients(*best[1]) if best else None


def _solve(
    gram: Sequence[Sequence[float]], right: Sequence[float], chosen: tuple[int, ...]
) -> list[float] | None:
    """Solve the normal equations of the chosen unknowns by elimination; None when singular."""
    rows = [[gram[i][j] for j in chosen] + [right[i]] for i in chosen]
    size = len(rows)
    least = 1e-9 * max(gram[i][i] for i in chosen)
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda row: abs(rows[row][pivot]))
        rows[pivot], rows[best] = rows[best], rows[pivot]
        if abs(rows[pivot][pivot]) <= least:
            return None
        for row in range(size):
            if row != pivot:
                factor = rows[row][pivot] / rows[pivot][pivot]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
