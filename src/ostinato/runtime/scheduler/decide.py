"""A tick: from a snapshot to a decision, and nothing else.

Layer by layer: which requests are admitted, whose unit is next, on which device, and who shares its
forward. The function is pure; the same snapshot gives the same decision in the engine, in a
replay and under the virtual clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from ostinato.runtime.scheduler.policy import Policy, Rank
from ostinato.runtime.scheduler.snapshot import (
    Decision,
    Device,
    Placed,
    Ready,
    Snapshot,
    Waiting,
)
from ostinato.tasks import RequestId
from ostinato.work import Resources

BYPASS_S = 30.0
"""Seconds for which a request that does not fit yet lets smaller ones pass it."""


def decide(snapshot: Snapshot, policy: Policy) -> Decision:
    """Return the decision of one tick.

    A tick that admits someone places nothing: the next one, at the same instant, gives the newly
    admitted their claim before a long unit takes the device.
    """
    hopeless = tuple(r.request_id for r in snapshot.ready if policy.hopeless(r, snapshot))
    admitted = _admit(snapshot, policy)
    units: tuple[Placed, ...] = ()
    if not admitted:
        order = ranked(snapshot, policy, leave_out=frozenset(hopeless))
        units = tuple(_place(snapshot, order))
    return Decision(tick=snapshot.tick, admitted=admitted, hopeless=hopeless, units=units)


def ranked(
    snapshot: Snapshot, policy: Policy, leave_out: frozenset[RequestId] = frozenset()
) -> list[Ready]:
    """Return the ready requests, the greatest claim first."""
    keyed: list[tuple[Rank, Ready]] = [
        (policy.rank(r, snapshot), r) for r in snapshot.ready if r.request_id not in leave_out
    ]
    keyed.sort(key=_rank_of)
    return [ready for _, ready in keyed]


def _rank_of(entry: tuple[Rank, Ready]) -> Rank:
    return entry[0]


def _admit(snapshot: Snapshot, policy: Policy) -> tuple[RequestId, ...]:
    """Admit in order of claim what fits; the first that does not fit is soon not passed any more.

    Smaller requests may pass it for `BYPASS_S`, so that room is not left idle; after that
    nothing is admitted before it, so that room gathers for it.
    """
    if not snapshot.waiting:
        return ()
    room, resident = snapshot.room, set(snapshot.resident)
    admitted: list[RequestId] = []
    order = sorted(snapshot.waiting, key=lambda w: policy.admission_rank(w, snapshot))
    for waiting in order:
        need = waiting.need + weights_need(waiting, resident)
        if need.fits(room):
            room = room - need
            resident.update(name for name, _ in waiting.weights)
            admitted.append(waiting.request_id)
        elif snapshot.now - waiting.arrived_s > BYPASS_S:
            break
    return tuple(admitted)


def weights_need(waiting: Waiting, resident: AbstractSet[str]) -> Resources:
    """Return the room that a request's weights take beyond those that have theirs."""
    missing = sum(size for name, size in waiting.weights if name not in resident)
    return Resources(memory_bytes=missing)


def _place(snapshot: Snapshot, order: Sequence[Ready]) -> Iterator[Placed]:
    """Give every free device the greatest claim that may run there, and its company."""
    free = {device.index: device for device in snapshot.devices if device.free_at is None}
    busy = {d.index: d.free_at - snapshot.now for d in snapshot.devices if d.free_at is not None}
    taken: set[RequestId] = set()
    for leader in order:
        if not free:
            return
        if leader.request_id in taken:
            continue
        device = _device_for(leader, free, busy)
        if device is None:
            continue
        del free[device]
        group = _company(leader, device, order, taken, snapshot)
        taken.update(ready.request_id for ready in group)
        yield Placed(
            device=device,
            request_ids=tuple(ready.request_id for ready in group),
            predicted_s=_group_s(group, snapshot),
            move_s=_move_s(leader, device),
        )


def _device_for(ready: Ready, free: dict[int, Device], busy: dict[int, float]) -> int | None:
    """Return where a unit runs: where its state is, or elsewhere when moving beats waiting."""
    if ready.device is None:
        return min(free)
    if ready.device in free:
        return ready.device
    waits = busy.get(ready.device, 0.0)
    return min(free) if ready.move_s is not None and ready.move_s < waits else None


def _move_s(ready: Ready, device: int) -> float:
    moves = ready.device is not None and ready.device != device
    return ready.move_s or 0.0 if moves else 0.0


def _company(
    leader: Ready, device: int, order: Sequence[Ready], taken: set[RequestId], snapshot: Snapshot
) -> list[Ready]:
    """Return the leader and those that share its forward: who may, and for whom it pays.

    It pays when the stack takes less than its parts one after the other, and delays nobody in it
    beyond a deadline.
    """
    group = [leader]
    seconds = snapshot.stack_s.get(leader.stack or "", ())
    items, alone_s = leader.items, leader.unit_s
    if not seconds:
        return group
    slack = leader.slack_s(snapshot.now) + leader.unit_s
    for other in order:
        if items >= len(seconds):
            break
        if (
            other is leader
            or other.stack != leader.stack
            or other.request_id in taken
            or other.device not in (None, device)
            or items + other.items > len(seconds)
        ):
            continue
        stacked_s = seconds[items + other.items - 1]
        room = min(slack, other.slack_s(snapshot.now) + other.unit_s)
        if stacked_s < alone_s + other.unit_s and stacked_s <= room:
            group.append(other)
            items, alone_s, slack = items + other.items, stacked_s, room
    return group


def _group_s(group: Sequence[Ready], snapshot: Snapshot) -> float:
    if len(group) == 1:
        return group[0].unit_s
    items = sum(ready.items for ready in group)
    return snapshot.stack_s[group[0].stack or ""][items - 1]
