"""Whose step is next: a pure function of a snapshot, so that it can be tested and replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ostinato.tasks import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyRequest:
    """A request whose next step could run now.

    arrival: order of submission. last_turn: the tick of its latest step, -1 before the first.
    """

    request_id: RequestId
    priority: int
    arrival: int
    last_turn: int


class TurnPolicy(Protocol):
    """Decides a tick."""

    def choose(self, ready: tuple[ReadyRequest, ...]) -> RequestId:
        """Return one of the ready requests (never empty)."""
        ...


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The highest priority first; among equals, whoever waited longest for a turn."""

    def choose(self, ready: tuple[ReadyRequest, ...]) -> RequestId:
        """Return the ready request with the greatest claim."""
        return min(ready, key=lambda r: (-r.priority, r.last_turn, r.arrival)).request_id
