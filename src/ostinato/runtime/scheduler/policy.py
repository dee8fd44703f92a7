"""Who goes first: an order over requests, and nothing else.

A policy is asked for a sort key of one request in one snapshot, so it can neither forget a request
nor run two. Starvation is ruled out here as well: a request that has waited many times its own unit
is overdue, and whoever has been overdue longest goes first. Who comes later, or has had its turn,
is behind it, so it waits for one unit of each that are there, however many keep coming.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from ostinato.errors import BadInput
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
    """The highest priority first; among equals, whoever waited longest."""

    name: str = "round-robin"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return priority, then since when it waits."""
        del snapshot
        return (-ready.priority, ready.waiting_since_s, ready.arrival)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShare:
    """The default: the tenant that has had least for its weight, then its least served request.

    Both count device-seconds, so a tenant of long requests and one of short ones get the same. New
    requests have had nothing, so a short one passes a long one that is well under way.
    priority outranks shares, until waiting has raised the others: one level every `age_s` seconds,
    never beyond the highest that is there. patience: a tenant's request that has waited this many
    times its own unit goes before the tenant's others; it never costs another tenant its share.
    """

    patience: float = 20.0
    age_s: float = 60.0
    name: str = "fair-share"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return priority, the tenant's claim, patience, the request's claim."""
        level = ready.priority
        if level < snapshot.top_priority:  # else it is not raised; this runs for all at every tick
            waited_s = snapshot.now - ready.waiting_since_s
            level = _raised(level, waited_s / self.age_s, snapshot)
        due_s = overdue_since(ready, snapshot.now, self.patience)
        tenant = _share(ready.tenant, snapshot)
        return (-level, tenant.claim, due_s, ready.attained_s, ready.arrival)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return priority, the tenant's claim, the order of arrival."""
        level = _raised(waiting.priority, (snapshot.now - waiting.arrived_s) / self.age_s, snapshot)
        return (-level, _share(waiting.tenant, snapshot).claim, waiting.arrival)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Never: a deadline that passes is noticed when it has passed."""
        del ready, snapshot
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestRemaining:
    """Whoever will be done soonest: the least mean time to finish, at the cost of long requests."""

    patience: float = 100.0
    name: str = "shortest-remaining"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return patience, then the seconds to go."""
        due_s = overdue_since(ready, snapshot.now, self.patience)
        return (due_s, ready.remaining_s, ready.arrival)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return patience, then the seconds to go."""
        due_s = _admission_overdue_since(waiting, snapshot.now, self.patience)
        return (due_s, waiting.remaining_s, waiting.arrival)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Never."""
        del ready, snapshot
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Requests with a deadline by the earliest one, while it can be met; the rest by `others`.

    Earliest-deadline-first meets every set of deadlines on one device that can be met at all (Liu
    and Layland 1973), and falls apart when they cannot; so who cannot make it is cut off as soon
    as the cost model knows: what was never measured gives up nobody, or it never would be. margin:
    a request is given up when those of its predicted seconds that stand on measurements, less this
    share of them, do not fit. patience: a request without a deadline that has waited this many
    times its own unit is due at once.
    """

    margin: float = 0.1
    patience: float = 100.0
    others: Policy = field(default_factory=FairShare)
    name: str = "deadline"

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return deadlines first; without one, what `others` says."""
        due_s = ready.deadline_s
        if due_s is None:
            due_s = overdue_since(ready, snapshot.now, self.patience)
        if due_s < math.inf:
            return (0.0, due_s, ready.arrival)
        return (1.0, *self.others.rank(ready, snapshot))

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return the same of requests that wait."""
        due_s = waiting.deadline_s
        if due_s is None:
            due_s = _admission_overdue_since(waiting, snapshot.now, self.patience)
        if due_s < math.inf:
            return (0.0, due_s, waiting.arrival)
        return (1.0, *self.others.admission_rank(waiting, snapshot))

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Whether even the device alone would bring it too late."""
        known_s = max(0.0, ready.remaining_s - ready.unmeasured_s)
        return ready.slack_s(snapshot.now) + ready.unmeasured_s < -self.margin * known_s


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


def policies() -> tuple[Policy, ...]:
    """Return every policy as it is by default."""
    return (
        FairShare(),
        FifoRequest(),
        RoundRobin(),
        ShortestRemaining(),
        Deadline(),
        AgedPriority(),
    )


def policy_named(name: str) -> Policy:
    """Return the policy of a name; raises BadInput that lists the names."""
    found = {policy.name: policy for policy in policies()}
    if name not in found:
        raise BadInput(f"no policy {name!r}; expected one of: {', '.join(found)}")
    return found[name]


def overdue_since(ready: Ready, now: float, patience: float) -> float:
    """Return the instant at which a request had waited `patience` units; infinite before it."""
    due_s = ready.waiting_since_s + patience * ready.unit_s
    return due_s if due_s < now else math.inf


def _admission_overdue_since(waiting: Waiting, now: float, patience: float) -> float:
    due_s = waiting.arrived_s + patience * waiting.remaining_s
    return due_s if due_s < now else math.inf


def _raised(priority: int, levels: float, snapshot: Snapshot) -> int:
    """Return a priority that waiting has raised by whole levels, not above the highest there is."""
    return min(priority + int(levels), max(priority, snapshot.top_priority))


def _share(tenant: str, snapshot: Snapshot) -> TenantShare:
    return snapshot.tenants.get(tenant) or TenantShare(weight=1.0, attained_s=0.0)
