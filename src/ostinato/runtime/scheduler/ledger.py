"""What the scheduler remembers between ticks: who is here, what each has had, what is reserved.

The engine and the simulator keep the same ledger; only their clocks and what runs the units
differ. Nothing here decides: `snapshot` shows what `decide` goes by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ostinato.runtime.scheduler.admission import Reservations
from ostinato.runtime.scheduler.shares import Shares
from ostinato.runtime.scheduler.snapshot import (
    Decision,
    Device,
    Placed,
    Ready,
    Snapshot,
    StackTable,
    Waiting,
)
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources

StackCosts = Callable[[str], StackTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextUnit:
    """What is known of a request's next unit; see `Ready`."""

    unit_s: float
    remaining_s: float
    unmeasured_s: float = 0.0
    stack: str | None = None
    items: int = 1
    move_s: float | None = None


@dataclass(slots=True)
class _Turn:
    """A request whose unit runs; device_s: its part of what the unit took, once that is known."""

    ready: Ready
    tick: int
    device: int
    device_s: float = 0.0


class Ledger:
    """Used by one thread."""

    def __init__(
        self,
        *,
        capacity: Resources = UNLIMITED,
        weights: Mapping[str, float] | None = None,
        num_devices: int = 1,
    ) -> None:
        """Take what the pool has, and the tenants' weights (1.0 for one that is not named)."""
        self.reservations = Reservations(capacity)
        self._shares = Shares(weights or {})
        self._waiting: dict[RequestId, Waiting] = {}
        self._ready: dict[RequestId, Ready] = {}
        self._running: dict[RequestId, _Turn] = {}
        self._devices = [Device(index=index) for index in range(num_devices)]
        self._tick = 0

    def submit(self, waiting: Waiting) -> None:
        """Let a request wait for admission; raises AdmissionInfeasible when it never can be.

        What was never measured refuses nobody, or it never would be: at most it takes all
        device-seconds that the pool has.
        """
        weights = Resources(memory_bytes=sum(size for _, size in waiting.weights))
        need, limit_s = waiting.need, self.reservations.capacity.compute_s
        certain = replace(need, compute_s=max(0.0, need.compute_s - waiting.unmeasured_s))
        self.reservations.require_feasible(waiting.request_id, certain + weights)
        booked = replace(need, compute_s=min(need.compute_s, limit_s))
        self._waiting[waiting.request_id] = replace(waiting, need=booked)
        self._shares.enter(waiting.tenant)

    @property
    def has_work(self) -> bool:
        """Whether a request waits for admission or for its turn."""
        return bool(self._waiting or self._ready)

    @property
    def tick(self) -> int:
        """Number of the next decision."""
        return self._tick

    @property
    def num_waiting(self) -> int:
        """Requests that wait for admission."""
        return len(self._waiting)

    def snapshot(self, now: float, stack_costs: StackCosts = lambda key: StackTable()) -> Snapshot:
        """Show what there is to decide.

        stack_costs: gives the prices of a stack key; asked for keys by which two or more
        calls are ready.
        """
        waiting, ready = tuple(self._waiting.values()), tuple(self._ready.values())
        calls: Counter[str] = Counter()
        for entry in ready:
            if entry.stack is not None:
                calls[entry.stack] += entry.items
        return Snapshot(
            tick=self._tick,
            now=now,
            waiting=waiting,
            ready=ready,
            devices=tuple(self._devices),
            tenants=self._shares.present,
            room=self.reservations.room,
            top_priority=max([0, *(entry.priority for entry in (*waiting, *ready))]),
            resident=self.reservations.resident,
            idle_weights=self.reservations.idle_weights,
            stacks={key: stack_costs(key) for key, count in calls.items() if count > 1},
        )

    def admit(self, decision: Decision, nexts: Mapping[RequestId, NextUnit]) -> None:
        """Reserve what the admitted need; `nexts` says what each will run first."""
        self._tick = decision.tick + 1
        for component in decision.evicted:
            self.reservations.drop(component)
        for request_id in decision.admitted:
            waiting = self._waiting.pop(request_id)
            self.reservations.keep(request_id, waiting.weights)
            self.reservations.reserve(request_id, waiting.need)
            following = nexts[request_id]
            self._ready[request_id] = Ready(
                request_id=request_id,
                tenant=waiting.tenant,
                priority=waiting.priority,
                arrival=waiting.arrival,
                arrived_s=waiting.arrived_s,
                waiting_since_s=waiting.arrived_s,
                deadline_s=waiting.deadline_s,
                last_turn=-1,
                attained_s=0.0,
                unit_s=following.unit_s,
                remaining_s=following.remaining_s,
                unmeasured_s=following.unmeasured_s,
                stack=following.stack,
                items=following.items,
                move_s=following.move_s,
            )

    def start(self, unit: Placed, now: float, tick: int) -> None:
        """Mark a device and its requests as busy."""
        end = now + unit.move_s + unit.predicted_s
        self._devices[unit.device] = Device(index=unit.device, free_at=end)
        for request_id in unit.request_ids:
            ready = self._ready.pop(request_id)
            self._running[request_id] = _Turn(ready, tick, unit.device)

    def stop(self, unit: Placed, device_s: float) -> None:
        """Mark the device as free and charge what the unit took to those who are still here.

        device_s: what the whole unit took; each pays by the calls that it brought.
        """
        self._devices[unit.device] = Device(index=unit.device)
        here = [self._running[name] for name in unit.request_ids if name in self._running]
        items = sum(turn.ready.items for turn in here)
        for turn in here:
            turn.device_s = device_s * turn.ready.items / items
            self._shares.charge(turn.ready.tenant, turn.device_s)

    def proceed(self, request_id: RequestId, following: NextUnit, now: float) -> None:
        """Make a request ready for its next unit, and give back what it no longer needs."""
        turn = self._running.pop(request_id)
        self._ready[request_id] = replace(
            turn.ready,
            waiting_since_s=now,
            last_turn=turn.tick,
            device=turn.device,
            attained_s=turn.ready.attained_s + turn.device_s,
            unit_s=following.unit_s,
            remaining_s=following.remaining_s,
            unmeasured_s=following.unmeasured_s,
            stack=following.stack,
            items=following.items,
            move_s=following.move_s,
        )
        self.reservations.spend(request_id, following.remaining_s)

    def shrink(self, request_id: RequestId, need: Resources) -> None:
        """Give back what a request no longer needs before it ends."""
        self.reservations.shrink(request_id, need)

    def leave(self, request_id: RequestId) -> None:
        """Forget a request that has ended, wherever it was, and give back all that it held."""
        self.reservations.release(request_id)
        turn = self._running.pop(request_id, None)
        entries = (
            self._waiting.pop(request_id, None),
            self._ready.pop(request_id, None),
            None if turn is None else turn.ready,
        )
        for entry in entries:
            if entry is not None:
                self._shares.leave(entry.tenant)
