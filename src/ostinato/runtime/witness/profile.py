"""The profiler: where the device-seconds of an engine went, by node, op and kind of unit."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.table import Table

from ostinato.runtime.scheduler import UnitRecord
from ostinato.runtime.witness.several import Bystander

WINDOW = 4096  # latest units of a row that its 95th percentile looks at: 32 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """Units of one model that ran the same ops for the same node.

    node, op: joined by ` + ` where a unit had several, so that its seconds count once. count: how
    many units. total_s, mean_s, p95_s: measured device-seconds, p95_s over the latest `WINDOW`
    units by nearest rank. share: part of all device-seconds, 0 to 1.
    """

    model: str
    node: str
    op: str
    kind: str
    count: int
    total_s: float
    mean_s: float
    p95_s: float
    share: float


class _Key(NamedTuple):
    model: str
    node: str
    op: str
    kind: str


@dataclass(slots=True)
class _Cell:
    count: int = 0
    total_s: float = 0.0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Profile(Bystander):
    """Adds up units; what it keeps grows with what differs, not with what runs.

    `rows` may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cells: dict[_Key, _Cell] = {}

    def executed(self, unit: UnitRecord) -> None:
        """Count a unit under its nodes and ops."""
        key = _Key(unit.model, _joined(unit.nodes), _joined(unit.ops), unit.kind)
        with self._lock:
            cell = self._cells.setdefault(key, _Cell())
            cell.count += 1
            cell.total_s += unit.device_s
            cell.latest.append(unit.device_s)

    def rows(self) -> tuple[ProfileRow, ...]:
        """Return what was seen, the greatest total first."""
        with self._lock:
            return self._rows()

    def _rows(self) -> tuple[ProfileRow, ...]:
        everything = math.fsum(cell.total_s for cell in self._cells.values())
        rows = [
            ProfileRow(
                **key._asdict(),
                count=cell.count,
                total_s=cell.total_s,
                mean_s=cell.total_s / cell.count,
                p95_s=percentile(cell.latest, 0.95),
                share=cell.total_s / everything if everything else 0.0,
            )
            for key, cell in self._cells.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.total_s))


def percentile(values: Iterable[float], part: float) -> float:
    """Return the nearest-rank percentile: the least value that `part` of all do not exceed.

    values: one or more; part: above 0, at most 1.
    """
    ordered = sorted(values)
    return ordered[math.ceil(part * len(ordered)) - 1]


def profile_table(rows: Iterable[ProfileRow]) -> Table:
    """Lay rows out for a terminal; durations of a unit in milliseconds."""
    table = Table(title="Device-seconds by node, op and kind")
    for name in ("model", "node", "op", "kind"):
        table.add_column(name, overflow="fold")
    for name in ("units", "total s", "mean ms", "p95 ms", "share"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.model,
            row.node,
            row.op,
            row.kind,
            str(row.count),
            f"{row.total_s:.3f}",
            f"{1e3 * row.mean_s:.2f}",
            f"{1e3 * row.p95_s:.2f}",
            f"{100 * row.share:.1f} %",
        )
    return table


def _joined(names: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(names))
