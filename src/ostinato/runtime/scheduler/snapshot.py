"""What the scheduler sees and what it says, as data: so a decision can be tested, kept, replayed.

All instants are seconds on one clock, the process's monotonic one or a virtual one; all costs are
predicted device-seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ostinato.tasks import RequestId
from ostinato.work import Resources

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request that was submitted and not yet admitted.

    need: its whole baseline. unmeasured_s: the part of remaining_s that is a guess. weights:
    (component, bytes) of what must be resident for it; those that are resident already, or come
    with another request, take no room twice.
    """

    request_id: RequestId
    tenant: str
    priority: int
    arrival: int
    arrived_s: float
    deadline_s: float | None
    need: Resources
    remaining_s: float
    unmeasured_s: float = 0.0
    weights: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An admitted request whose next unit could run now.

    arrival: order of submission. arrived_s, waiting_since_s: when it came, and when it last got a
    turn or came. deadline_s: the instant after which its output is worth nothing, None for
    never. last_turn: the tick of its latest unit, -1 before the first. unit_s, remaining_s: its
    next unit alone, and all its units to come; unmeasured_s: the part of remaining_s that is a
    guess. attained_s: what its units have cost so far.
    stack: what its next unit can share a forward by, None for one that runs alone. items: calls
    that the unit brings into a stack. device: where its state lies, None before its first unit.
    move_s: what moving the state would take, None where it cannot move.
    """

    request_id: RequestId
    tenant: str
    priority: int
    arrival: int
    arrived_s: float
    waiting_since_s: float
    deadline_s: float | None
    last_turn: int
    unit_s: float
    remaining_s: float
    attained_s: float
    unmeasured_s: float = 0.0
    stack: str | None = None
    items: int = 1
    device: int | None = None
    move_s: float | None = None

    def slack_s(self, now: float) -> float:
        """Return the seconds it can still wait; infinite without a deadline."""
        if self.deadline_s is None:
            return float("inf")
        return self.deadline_s - now - self.remaining_s


class StackTable(NamedTuple):
    """seconds: predicted, of 1, 2, ... stacked calls; as many as may be stacked.

    trial: up to so many calls share a forward whatever it costs, to learn what it does; 0 for none.
    """

    seconds: tuple[float, ...] = ()
    trial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the pool; free_at: predicted end of what runs on it, None when it is free."""

    index: int
    free_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """weight: its part of the pool against the others'. attained_s: device-seconds it has had.

    A tenant that comes starts level with the least of those present at least: nobody saves up a
    claim on the future. Who had an idle pool to itself owes nobody for it: see `Shares`.
    """

    weight: float
    attained_s: float

    @property
    def claim(self) -> float:
        """Return what it has had per weight; the least goes first."""
        return self.attained_s / self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a decision depends on.

    tenants: those that have a request here. room: what is not reserved. top_priority: the highest
    of those that wait or are ready, if it is above 0. resident: components whose weights have
    their room. idle_weights: (component, bytes) of those that no admitted request needs, the
    longest unused first. stacks: by stack key.
    """

    tick: int
    now: float
    waiting: tuple[Waiting, ...]
    ready: tuple[Ready, ...]
    devices: tuple[Device, ...]
    tenants: dict[str, TenantShare]
    room: Resources
    top_priority: int = 0
    resident: frozenset[str] = frozenset()
    idle_weights: tuple[tuple[str, float], ...] = ()
    stacks: dict[str, StackTable] = field(default_factory=dict[str, StackTable])


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Units that run on a device, the leader first.

    stacked: whether all their calls are one forward; always so for several requests, and for one
    whose own calls, such as its branches of guidance, are cheaper so. move_s: spent on moving
    states.
    """

    device: int
    request_ids: tuple[RequestId, ...]
    predicted_s: float
    stacked: bool = False
    move_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One tick: who is admitted, who cannot make its deadline any more, what runs where.

    evicted: components whose weights are unloaded, before all else, for those who are admitted.
    """

    tick: int
    admitted: tuple[RequestId, ...] = ()
    evicted: tuple[str, ...] = ()
    hopeless: tuple[RequestId, ...] = ()
    units: tuple[Placed, ...] = ()
