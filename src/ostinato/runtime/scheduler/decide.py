"""A tick: from a snapshot to a decision, and nothing else.

Layer by layer: which requests are admitted, whose unit is next, on which device, and who shares its
forward. The function is pure; the same snapshot gives the same decision in the engine, in a
replay and under the virtual clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ostinato.runtime.scheduler.batching import Ranked, company
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
    admitted, evicted = _admit(snapshot, policy)
    units: tuple[Placed, ...] = ()
    if not admitted:
        order = _ranked(snapshot, policy, frozenset(hopeless))
        units = tuple(_place(snapshot, order, policy))
    return Decision(
        tick=snapshot.tick, admitted=admitted, evicted=evicted, hopeless=hopeless, units=units
    )


def _ranked(snapshot: Snapshot, policy: Policy, leave_out: frozenset[RequestId]) -> list[Ranked]:
    """Return the ready requests, the greatest claim first."""
    order = [
        Ranked(policy.rank(ready, snapshot), ready)
        for ready in snapshot.ready
        if ready.request_id not in leave_out
    ]
    order.sort(key=_rank_of)
    return order


def _rank_of(ranked: Ranked) -> Rank:
    return ranked.rank


def _admit(snapshot: Snapshot, policy: Policy) -> tuple[tuple[RequestId, ...], tuple[str, ...]]:
    """Admit in order of claim what fits; the first that does not fit is soon not passed any more.

    Smaller requests may pass it for `BYPASS_S`, so that room is not left idle; after that
    nothing is admitted before it, so that room gathers for it. Weights that nobody admitted needs
    give way, those of a request with a greater claim excepted. Returns who is admitted, and the
    components that give way.
    """
    if not snapshot.waiting:
        return (), ()
    room, resident = snapshot.room, set(snapshot.resident)
    idle, admitted, evicted = dict(snapshot.idle_weights), list[RequestId](), list[str]()
    order = sorted(snapshot.waiting, key=lambda w: policy.admission_rank(w, snapshot))
    for waiting in order:
        for name, _ in waiting.weights:
            idle.pop(name, None)
        need = waiting.need + weights_need(waiting, resident)
        gone = _in_the_way(need, room, idle)
        if gone is not None:
            room = room + Resources(memory_bytes=sum(idle.pop(name) for name in gone)) - need
            resident.difference_update(gone)
            evicted.extend(gone)
            resident.update(name for name, _ in waiting.weights)
            admitted.append(waiting.request_id)
        elif snapshot.now - waiting.arrived_s > BYPASS_S:
            break
    return tuple(admitted), tuple(evicted)


def _in_the_way(
    need: Resources, room: Resources, idle: Mapping[str, float]
) -> tuple[str, ...] | None:
    """Return the idle components without which a need fits; None where it does not even so."""
    gone: list[str] = []
    names = iter(idle)
    while not need.fits(room):
        name = next(names, None)
        if name is None:
            return None
        gone.append(name)
        room = room + Resources(memory_bytes=idle[name])
    return tuple(gone)


def weights_need(waiting: Waiting, resident: AbstractSet[str]) -> Resources:
    """Return the room that a request's weights take beyond those that have theirs."""
    missing = sum(size for name, size in waiting.weights if name not in resident)
    return Resources(memory_bytes=missing)


def _place(snapshot: Snapshot, order: Sequence[Ranked], policy: Policy) -> Iterator[Placed]:
    """Give every free device the greatest claim that may run there, then each its company.

    Company comes last: what could run on a free device of its own does not share one.
    """
    free = {device.index: device for device in snapshot.devices if device.free_at is None}
    busy = {d.index: d.free_at - snapshot.now for d in snapshot.devices if d.free_at is not None}
    leaders: list[tuple[Ranked, int]] = []
    for ranked in order:
        if not free:
            break
        device = _device_for(ranked.ready, free, busy)
        if device is not None:
            del free[device]
            leaders.append((ranked, device))
    taken = {ranked.ready.request_id for ranked, _ in leaders}
    for leader, device in leaders:
        forward = company(leader, device, order, taken, snapshot, policy)
        taken.update(ready.request_id for ready in forward.group)
        yield Placed(
            device=device,
            request_ids=tuple(ready.request_id for ready in forward.group),
            predicted_s=forward.seconds,
            stacked=forward.stacked,
            move_s=_move_s(leader.ready, device),
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
