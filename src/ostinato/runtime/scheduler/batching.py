"""Who shares a forward with whom: for whom it pays, and never at the cost of a greater claim."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from ostinato.runtime.scheduler.policy import Policy, Rank
from ostinato.runtime.scheduler.snapshot import Ready, Snapshot, StackTable
from ostinato.tasks import RequestId

YIELD = 1 / 3
"""Part of its unit by which one that would have had to wait may lengthen the others' stack."""


class Ranked(NamedTuple):
    """A ready request with its claim."""

    rank: Rank
    ready: Ready


class Forward(NamedTuple):
    """Who shares one, the leader first; stacked: whether all their calls are one."""

    group: list[Ready]
    stacked: bool
    seconds: float


class _Due(NamedTuple):
    """One with a deadline; rest_s: what the leader runs before it, after its present unit."""

    ready: Ready
    rest_s: float


class _Bystander(NamedTuple):
    """One that waits for the leader's unit; room_s: what that may take by its deadline."""

    ready: Ready
    room_s: float


def company(
    leader: Ranked,
    device: int,
    order: Sequence[Ranked],
    taken: AbstractSet[RequestId],
    snapshot: Snapshot,
    policy: Policy,
) -> Forward:
    """Return the leader and those that share its forward, by their claim.

    As many as save most: what their units take one by one, less what the stack takes. Of one that
    would run before the leader's next unit anyway the whole unit counts, since both are done sooner
    together. One that would have had to wait delays those who would not, so only `YIELD` of its
    unit counts. A stack that is tried has room for anyone. Nobody joins or is joined beyond a
    deadline, a trial is taken for no faster than its parts, and no stack is so long that one of
    those who wait beside it passes a deadline that it would have met.
    """
    table = snapshot.stacks.get(leader.ready.stack or "", StackTable())
    if not table.seconds:
        return Forward([leader.ready], stacked=False, seconds=leader.ready.unit_s)
    later = _after(leader.ready, snapshot)
    leader_rank = policy.rank(_having_run(leader.ready, later), later)
    rest_s = max(0.0, leader.ready.remaining_s - leader.ready.unit_s)

    def sooner(other: Ready) -> bool:
        return policy.rank(other, later) < leader_rank

    others = [other for _, other in order if other.request_id not in taken]
    due = [
        _Due(other, 0.0 if sooner(other) else rest_s)
        for other in others
        if other.deadline_s is not None
    ]
    stack = _Stack(leader.ready, table, due, device, snapshot.now)
    for other in others:
        if stack.full:
            break
        if other.stack == leader.ready.stack and other.device in (None, device):
            stack.join(other, 1.0 if sooner(other) else YIELD)
    return stack.forward()


class _Stack:
    """A stack as it grows from its leader's calls, by the prices of one table.

    Those are comparable; prices of units were made at other times, and a device has its better and
    its worse moments.
    """

    def __init__(
        self, leader: Ready, table: StackTable, due: Sequence[_Due], device: int, now: float
    ) -> None:
        self._seconds, self._trial, self._now = table.seconds, table.trial, now
        self._group, self._most = [leader], 1
        self._items, self._parts_s = leader.items, leader.items * table.seconds[0]
        self._counted_s, self._saved_s = self._parts_s, _saved_alone_s(leader, table.seconds)
        self._room_s = _room_s(leader, now)
        alone_s = _forward([leader], table.seconds, tried=False).seconds
        self._bystanders = _bystanders(alone_s, due, device, now)
        tried = 1 < self._items <= min(table.trial, len(table.seconds))
        self._tried = tried and max(table.seconds[self._items - 1], self._parts_s) <= _least_s(
            self._room_s, self._bystanders
        )

    @property
    def full(self) -> bool:
        """Whether no call fits any more."""
        return self._items >= len(self._seconds)

    def join(self, other: Ready, counts: float) -> None:
        """Take one more in where that breaks no deadline; counts: the part of its unit saved."""
        joined = self._items + other.items
        if joined > len(self._seconds):
            return
        stacked_s, own_s = self._seconds[joined - 1], other.items * self._seconds[0]
        tried = joined <= self._trial
        most_s = max(stacked_s, self._parts_s + own_s) if tried else stacked_s
        room_s = min(self._room_s, _room_s(other, self._now))
        left = [each for each in self._bystanders if each.ready is not other]
        if most_s > _least_s(room_s, left):
            return
        self._group.append(other)
        self._items, self._room_s, self._bystanders = joined, room_s, left
        self._parts_s += own_s
        self._counted_s += counts * own_s
        if tried or self._counted_s - stacked_s > self._saved_s:
            self._most = len(self._group)
            self._saved_s = max(self._saved_s, self._counted_s - stacked_s)

    def forward(self) -> Forward:
        """Return as many as save most."""
        return _forward(self._group[: self._most], self._seconds, tried=self._tried)


def _forward(group: list[Ready], seconds: Sequence[float], *, tried: bool) -> Forward:
    """Return how a group runs; the calls of one request are stacked where that is cheaper."""
    if len(group) == 1 and not tried and not _saved_alone_s(group[0], seconds):
        return Forward(group, stacked=False, seconds=group[0].unit_s)
    items = sum(ready.items for ready in group)
    return Forward(group, stacked=True, seconds=seconds[items - 1])


def _bystanders(alone_s: float, due: Sequence[_Due], device: int, now: float) -> list[_Bystander]:
    """Return those whose deadlines the leader's unit can still break.

    alone_s: what that takes without company. due: the greatest claim first; they are taken to run
    one after the other. One that can be in time only as the very next leaves the unit what it takes
    alone.
    """
    found: list[_Bystander] = []
    ahead_s = 0.0
    for ready, rest_s in due:
        spare_s = ready.slack_s(now) - rest_s
        if ready.device in (None, device) and spare_s >= alone_s:
            found.append(_Bystander(ready, max(alone_s, spare_s - ahead_s)))
            ahead_s += ready.remaining_s
    return found


def _least_s(room_s: float, bystanders: Sequence[_Bystander]) -> float:
    return min([room_s, *(each.room_s for each in bystanders)])


def _saved_alone_s(leader: Ready, seconds: Sequence[float]) -> float:
    """Return what a stack of a request's own calls saves."""
    if not 1 < leader.items <= len(seconds):
        return 0.0
    return max(0.0, leader.items * seconds[0] - seconds[leader.items - 1])


def _room_s(ready: Ready, now: float) -> float:
    """Return the seconds that its next unit may take without its deadline passing."""
    return ready.slack_s(now) + ready.unit_s


def _after(leader: Ready, snapshot: Snapshot) -> Snapshot:
    """Return what there will be to decide once the leader's unit has run alone."""
    share = snapshot.tenants[leader.tenant]
    charged = replace(share, attained_s=share.attained_s + leader.unit_s)
    return replace(
        snapshot,
        now=snapshot.now + leader.unit_s,
        tenants={**snapshot.tenants, leader.tenant: charged},
    )


def _having_run(leader: Ready, later: Snapshot) -> Ready:
    return replace(
        leader,
        last_turn=later.tick,
        waiting_since_s=later.now,
        attained_s=leader.attained_s + leader.unit_s,
        remaining_s=max(0.0, leader.remaining_s - leader.unit_s),
    )
