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
    group, most = [leader.ready], 1
    seconds, trial = snapshot.stacks.get(leader.ready.stack or "", StackTable())
    if not seconds:
        return Forward(group, stacked=False, seconds=leader.ready.unit_s)
    later = _after(leader.ready, snapshot)
    leader_rank = policy.rank(_having_run(leader.ready, later), later)
    alone_s = _forward([leader.ready], seconds, tried=False).seconds
    rest_s = max(0.0, leader.ready.remaining_s - leader.ready.unit_s)
    due = [
        _Due(other, 0.0 if policy.rank(other, later) < leader_rank else rest_s)
        for _, other in order
        if other.deadline_s is not None and other.request_id not in taken
    ]
    bystanders = _bystanders(alone_s, due, device, snapshot.now)
    # Prices of one table are comparable; those of units were made at other times, and a device has
    # its better and its worse moments.
    items, parts_s = leader.ready.items, leader.ready.items * seconds[0]
    counted_s = parts_s
    room_s, saved_s = _room_s(leader.ready, snapshot), _saved_alone_s(leader.ready, seconds)
    tried = 1 < items <= min(trial, len(seconds))
    tried = tried and max(seconds[items - 1], parts_s) <= _least_s(room_s, bystanders)
    for _, other in order:
        if items >= len(seconds):
            break
        joined = items + other.items
        if joined > len(seconds) or other.request_id in taken:
            continue
        if other.stack != leader.ready.stack or other.device not in (None, device):
            continue
        stacked_s, within_s = seconds[joined - 1], min(room_s, _room_s(other, snapshot))
        own_s = other.items * seconds[0]
        most_s = max(stacked_s, parts_s + own_s) if joined <= trial else stacked_s
        left = [each for each in bystanders if each.ready is not other]
        if most_s > _least_s(within_s, left):
            continue
        group.append(other)
        items, room_s, parts_s, bystanders = joined, within_s, parts_s + own_s, left
        counted_s += own_s * (1.0 if policy.rank(other, later) < leader_rank else YIELD)
        if joined <= trial or counted_s - stacked_s > saved_s:
            most, saved_s = len(group), max(saved_s, counted_s - stacked_s)
    return _forward(group[:most], seconds, tried=tried)


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


def _room_s(ready: Ready, snapshot: Snapshot) -> float:
    """Return the seconds that its next unit may take without its deadline passing."""
    return ready.slack_s(snapshot.now) + ready.unit_s


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
