"""What the scheduler tells those who look on: metrics, a timeline, a record of decisions.

A witness is called on the device worker between units. It must be quick and must not raise; what
it is given is data that it may keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ostinato.runtime.scheduler.snapshot import Decision, Snapshot, Waiting
from ostinato.tasks import RequestId
from ostinato.work import Resources


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRecord:
    """One executed unit, or several that shared a forward.

    start_s, end_s: the process's monotonic clock, weights loaded before start_s. nodes: the
    program's node of each request, in order. ops: `component.op` of the calls, without repeats.
    items: calls that ran as one; 1 when nothing was shared. predicted_s, device_s: what was
    expected, what it took; load_s: spent on loading weights before it, which is not part of
    device_s.
    """

    tick: int
    device: int
    model: str
    request_ids: tuple[RequestId, ...]
    tenants: tuple[str, ...]
    nodes: tuple[str, ...]
    kind: str
    ops: tuple[str, ...]
    items: int
    start_s: float
    end_s: float
    predicted_s: float
    device_s: float
    load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How full the engine is: counts of requests, room taken and left, bytes by model.

    page_bytes: of K/V pages in use. weight_bytes: of resident weights.
    """

    waiting: int
    ready: int
    reserved: Resources
    room: Resources
    page_bytes: dict[str, int]
    weight_bytes: dict[str, int]


class Witness(Protocol):
    """Looks on."""

    def submitted(self, waiting: Waiting, model: str) -> None:
        """A request came; it waits for admission."""
        ...

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        """A tick was decided."""
        ...

    def executed(self, unit: UnitRecord) -> None:
        """A unit is done."""
        ...

    def ended(self, request_id: RequestId, outcome: Outcome, now: float) -> None:
        """A request ended; its reservations are given back."""
        ...

    def level(self, level: Level) -> None:
        """How full the engine is, after a tick."""
        ...
