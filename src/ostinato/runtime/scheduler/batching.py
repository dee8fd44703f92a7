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


def company(
    leader: Ranked,
    device: int,
    order: Sequence[Ranked],
    taken: AbstractSet[RequestId],
    snapshot: Snapshot,
    policy: Policy,
) -> list[Ready]:
    """Return the leader and those that share its forward, by their claim.

    As many as save most: what their units take one by one, less what the stack takes. Of one that
    would run before the leader's next unit anyway the whole unit counts, since both are done sooner
    together. One that would have had to wait delays those who would not, so only `YIELD` of its
    unit counts. A stack that is tried has room for anyone. Nobody joins or is joined beyond a
    deadline, and a trial is taken for no faster than its parts.
    """
    group, most = [leader.ready], 1
    seconds, trial = snapshot.stacks.get(leader.ready.stack or "", StackTable())
    if not seconds:
        return group
    later = _after(leader.ready, snapshot)
    leader_rank = policy.rank(_having_run(leader.ready, later), later)
    # Prices of one table are comparable; those of units were made at other times, and a device has
    # its better and its worse moments.
    items, parts_s = leader.ready.items, leader.ready.items * seconds[0]
    counted_s = parts_s
    room_s, saved_s = _room_s(leader.ready, snapshot), _saved_alone_s(leader.ready, seconds)
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
        if most_s > within_s:
            continue
        group.append(other)
        items, room_s, parts_s = joined, within_s, parts_s + own_s
        counted_s += own_s * (1.0 if policy.rank(other, later) < leader_rank else YIELD)
        if joined <= trial or counted_s - stacked_s > saved_s:
            most, saved_s = len(group), max(saved_s, counted_s - stacked_s)
    return group[:most]


def is_stacked(group: Sequence[Ready], snapshot: Snapshot) -> bool:
    """Whether the calls of a group are one forward; those of one request where that is cheaper."""
    (leader, *others) = group
    seconds, trial = snapshot.stacks.get(leader.stack or "", StackTable())
    return bool(others) or 1 < leader.items <= trial or _saved_alone_s(leader, seconds) > 0


def group_s(group: Sequence[Ready], snapshot: Snapshot) -> float:
    """Return the predicted seconds of a group."""
    if not is_stacked(group, snapshot):
        return group[0].unit_s
    items = sum(ready.items for ready in group)
    return snapshot.stacks[group[0].stack or ""].seconds[items - 1]


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
