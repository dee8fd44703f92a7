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

    One that would run before the leader's next unit anyway joins when the stack takes less than
    its parts one after the other: both are done sooner. One that would have had to wait delays
    those who would not, so it joins when it costs them at most `YIELD` of its own unit. A stack
    that is tried has room for anyone. Nobody joins or is joined beyond a deadline, and a trial is
    taken for no faster than its parts.
    """
    group = [leader.ready]
    seconds, trial = snapshot.stacks.get(leader.ready.stack or "", StackTable())
    if not seconds:
        return group
    later = _after(leader.ready, snapshot)
    leader_rank = policy.rank(_having_run(leader.ready, later), later)
    items, group_s, parts_s = leader.ready.items, leader.ready.unit_s, leader.ready.unit_s
    room_s = leader.ready.slack_s(snapshot.now) + leader.ready.unit_s
    for _, other in order:
        if items >= len(seconds):
            break
        if not _may_join(leader.ready, other, device) or other.request_id in taken:
            continue
        if items + other.items > len(seconds):
            continue
        stacked_s, tried = seconds[items + other.items - 1], items + other.items <= trial
        part = 1.0 if policy.rank(other, later) < leader_rank else YIELD
        within_s = min(room_s, other.slack_s(snapshot.now) + other.unit_s)
        most_s = max(stacked_s, parts_s + other.unit_s) if tried else stacked_s
        if most_s <= within_s and (tried or stacked_s - group_s < part * other.unit_s):
            group.append(other)
            items, group_s, room_s = items + other.items, stacked_s, within_s
            parts_s += other.unit_s
    return group


def group_s(group: Sequence[Ready], snapshot: Snapshot) -> float:
    """Return the predicted seconds of a group."""
    if len(group) == 1:
        return group[0].unit_s
    items = sum(ready.items for ready in group)
    return snapshot.stacks[group[0].stack or ""].seconds[items - 1]


def _may_join(leader: Ready, other: Ready, device: int) -> bool:
    return other.stack == leader.stack and other.device in (None, device)


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
