"""Who goes first: an order over requests, and nothing else.

A policy is asked for a sort key of one request in one snapshot, so it can neither forget a request
nor run two. Starvation is ruled out here as well: every policy but the baseline lets a request
that has waited many times its own unit go before the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ostinato.runtime.scheduler.snapshot import Ready, Snapshot, TenantShare, Waiting

Rank = tuple[float, ...]
"""Compared item by item; the least goes first."""


class Policy(Protocol):
    """Orders what is ready, and what waits for admission."""

    @property
    def name(self) -> str: ...

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return the claim of a request to the next unit."""
        ...

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return the claim of a request to be admitted."""
        ...

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Whether it is not worth going on: its deadline cannot be met even alone."""
        ...


@dataclass(frozen=True, slots=True)
class FifoRequest:
    """One request after the other, in the order of arrival: what most servers do. The baseline."""

    name: str = "fifo-request"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return the order of arrival."""
        del snapshot
        return (ready.arrival,)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return the order of arrival."""
        del snapshot
        return (waiting.arrival,)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Never: it knows no deadlines."""
        del ready, snapshot
        return False


@dataclass(frozen=True, slots=True)
class RoundRobin(FifoRequest):
    """The highest priority first; among equals, whoever waited most turns."""

    name: str = "round-robin"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return priority, then the latest turn."""
        del snapshot
        return (-ready.priority, ready.last_turn, ready.arrival)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShare:
    """The default: the tenant that has had least for its weight, then its least served request.

    Both count device-seconds, so a tenant of long requests and one of short ones get the same. New
    requests have had nothing, so a short one passes a long one that is well under way.
    priority outranks shares. patience: a request that has waited this many times its own unit
    goes first, so that it keeps about 1 / patience of the device under any load of the others.
    """

    patience: float = 20.0
    name: str = "fair-share"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return patience, priority, the tenant's claim, the request's."""
        late = overdue(ready, snapshot.now, self.patience)
        tenant = _share(ready.tenant, snapshot)
        return (-late, -ready.priority, tenant.claim, ready.attained_s, ready.arrival)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return priority, the tenant's claim, the order of arrival."""
        tenant = _share(waiting.tenant, snapshot)
        return (-waiting.priority, tenant.claim, waiting.arrival)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Never: a deadline that passes is noticed when it has passed."""
        del ready, snapshot
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestRemaining:
    """Whoever will be done soonest: the least mean time to finish, at the cost of long requests."""

    patience: float = 20.0
    name: str = "shortest-remaining"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return patience, then the seconds to go."""
        late = overdue(ready, snapshot.now, self.patience)
        return (-late, ready.remaining_s, ready.arrival)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return the seconds to go."""
        del snapshot
        return (waiting.remaining_s, waiting.arrival)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Never."""
        del ready, snapshot
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Requests with a deadline by the earliest one, while it can be met; the rest by `others`.

    Earliest-deadline-first meets every set of deadlines on one device that can be met at all (Liu
    and Layland 1973), and falls apart when they cannot; so who cannot make it is cut off as soon
    as the cost model knows. margin: a request is given up when its predicted seconds, less this
    share of them, do not fit.
    """

    margin: float = 0.1
    others: Policy = field(default_factory=FairShare)
    name: str = "deadline"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return deadlines first; without one, what `others` says."""
        if ready.deadline_s is not None:
            return (0.0, ready.deadline_s, ready.arrival)
        return (1.0, *self.others.rank(ready, snapshot))

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return the same of requests that wait."""
        if waiting.deadline_s is not None:
            return (0.0, waiting.deadline_s, waiting.arrival)
        return (1.0, *self.others.admission_rank(waiting, snapshot))

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Whether even the device alone would bring it too late."""
        return ready.slack_s(snapshot.now) < -self.margin * ready.remaining_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedPriority:
    """The highest priority first, where waiting raises it: one level every `age_s` seconds."""

    age_s: float = 60.0
    name: str = "priority"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return the aged priority, then the latest turn."""
        aged = ready.priority + (snapshot.now - ready.waiting_since_s) / self.age_s
        return (-aged, ready.last_turn, ready.arrival)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return the aged priority."""
        aged = waiting.priority + (snapshot.now - waiting.arrived_s) / self.age_s
        return (-aged, waiting.arrival)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Never."""
        del ready, snapshot
        return False


def overdue(ready: Ready, now: float, patience: float) -> float:
    """Return how many times its unit a request has waited beyond `patience`, 0 within it."""
    waited = now - ready.waiting_since_s
    return max(0.0, waited / max(ready.unit_s, 1e-9) - patience)


def _share(tenant: str, snapshot: Snapshot) -> TenantShare:
    return snapshot.tenants.get(tenant) or TenantShare(weight=1.0, attained_s=0.0)
