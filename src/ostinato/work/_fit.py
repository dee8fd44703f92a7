"""Least squares with coefficients of at least 0, for three unknowns: small enough to enumerate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple


class Point(NamedTuple):
    """One shape: operations, bytes, and the seconds that it took."""

    flops: float
    num_bytes: float
    seconds: float


class Coefficients(NamedTuple):
    """seconds = fixed + per_flop * flops + per_byte * bytes."""

    fixed: float
    per_flop: float
    per_byte: float

    def at(self, flops: float, num_bytes: float) -> float:
        """Return seconds."""
        return self.fixed + self.per_flop * flops + self.per_byte * num_bytes


def fit_non_negative(points: Sequence[Point]) -> Coefficients | None:
    """Fit the relative error of all points; None when nothing fits.

    Every subset of the unknowns is solved without a constraint and the best solution without a
    negative coefficient is taken: for so few unknowns that is exact non-negative least squares.
    """
    columns = _scaled_columns(points)
    best: tuple[float, Coefficients] | None = None
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            solution = _solve(columns, chosen)
            if solution is None or min(solution) < 0:
                continue
            values = [0.0, 0.0, 0.0]
            for index, value in zip(chosen, solution, strict=True):
                values[index] = value
            found = Coefficients(*values)
            error = sum((found.at(p.flops, p.num_bytes) / p.seconds - 1) ** 2 for p in points)
            if best is None or error < best[0]:
                best = error, found
    return best[1] if best else None


def _scaled_columns(points: Sequence[Point]) -> list[list[float]]:
    """Divide each row by its seconds: the right-hand side is then 1, the error a relative one."""
    return [
        [1.0 / p.seconds for p in points],
        [p.flops / p.seconds for p in points],
        [p.num_bytes / p.seconds for p in points],
    ]


def _solve(columns: list[list[float]], chosen: tuple[int, ...]) -> list[float] | None:
    """Solve the normal equations of the chosen columns by elimination; None when singular."""
    used = [columns[index] for index in chosen]
    scale = [max(column) or 1.0 for column in used]  # columns differ by ten powers of ten
    used = [[v / s for v in column] for column, s in zip(used, scale, strict=True)]
    size = len(used)
    rows = [[_dot(a, b) for b in used] + [sum(a)] for a in used]
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda row: abs(rows[row][pivot]))
        rows[pivot], rows[best] = rows[best], rows[pivot]
        if abs(rows[pivot][pivot]) < 1e-9:
            return None
        for row in range(size):
            if row != pivot:
                factor = rows[row][pivot] / rows[pivot][pivot]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    return [rows[i][size] / rows[i][i] / scale[i] for i in range(size)]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
