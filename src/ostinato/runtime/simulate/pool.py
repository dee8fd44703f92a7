"""Devices under a virtual clock, and the ledger of the real engine; nothing is decided here."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.errors import AdmissionInfeasible, BadInput
from ostinato.runtime.scheduler import (
    Decision,
    Ledger,
    Placed,
    Snapshot,
    StackTable,
    Waiting,
)
from ostinato.runtime.simulate.course import Course, mixed
from ostinato.runtime.simulate.profile import Profiles
from ostinato.runtime.simulate.result import Ending, RequestRecord, RunRecord, Service, SimResult
from ostinato.runtime.simulate.trace import Planned
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources

Decider = Callable[[Snapshot], Decision]


@dataclass(slots=True)
class _Live:
    """A request under way; num_done: units."""

    planned: Planned
    course: Course
    num_done: int = 0
    running: bool = False
    started_s: float | None = None
    device_s: float = 0.0


class VirtualPool:
    """Devices, a clock that jumps from event to event, and the ledger of the real engine."""

    def __init__(
        self,
        arrivals: Sequence[Planned],
        profiles: Profiles,
        decider: Decider,
        *,
        tenant_weights: Mapping[str, float],
        seed: int = 0,
        num_devices: int = 1,
        capacity: Resources = UNLIMITED,
    ) -> None:
        """Take arrivals in order of time."""
        if num_devices < 1:
            raise BadInput(f"num_devices is {num_devices}; expected at least 1")
        self.ledger = Ledger(capacity=capacity, weights=tenant_weights, num_devices=num_devices)
        self._arrivals = arrivals
        self._profiles = profiles
        self._decider = decider
        self._seed = seed
        self._num_devices = num_devices
        self._courses = {name: Course.of(p) for name, p in profiles.classes.items()}
        self._now = 0.0
        self._num_arrived = 0
        self._num_free = num_devices
        self._live: dict[RequestId, _Live] = {}
        self._ends: list[tuple[float, int, float, Placed]] = []  # end, device, start, unit
        self._deadlines: list[tuple[float, RequestId]] = []
        self._records: list[RequestRecord] = []
        self._services: list[Service] = []
        self._stacked: Counter[int] = Counter()
        self._decisions: list[Decision] = []

    def run(self) -> SimResult:
        """Run to the end of the last request."""
        while (now := self._next_event()) is not None:
            self._now = now
            while self._ends and self._ends[0][0] <= now:
                _, _, start, unit = heapq.heappop(self._ends)
                self._finish_unit(unit, start)
            while self._num_arrived < len(self._arrivals):
                planned = self._arrivals[self._num_arrived]
                if planned.arrived_s > now:
                    break
                self._num_arrived += 1
                self._submit(planned)
            self._sweep()
            self._tick()
        assert not self._live, f"{len(self._live)} requests are stuck"
        self._records.sort(key=lambda record: record.index)
        run = RunRecord(
            requests=tuple(self._records),
            services=tuple(self._services),
            stacked=dict(sorted(self._stacked.items())),
            num_devices=self._num_devices,
        )
        return SimResult(run=run, decisions=tuple(self._decisions))

    def _next_event(self) -> float | None:
        times = [self._ends[0][0]] if self._ends else []
        if self._num_arrived < len(self._arrivals):
            times.append(self._arrivals[self._num_arrived].arrived_s)
        return min(times, default=None)

    def _submit(self, planned: Planned) -> None:
        course = self._courses[planned.request_class]
        request_id = RequestId(f"r{planned.index}")
        self._live[request_id] = _Live(planned, course)
        need = replace(course.profile.need, compute_s=course.profile.alone_s)
        waiting = Waiting(
            request_id=request_id,
            tenant=planned.tenant,
            priority=planned.priority,
            arrival=planned.index,
            arrived_s=planned.arrived_s,
            deadline_s=planned.deadline_s,
            need=need,
            remaining_s=course.profile.alone_s,
        )
        try:
            self.ledger.submit(waiting)
        except AdmissionInfeasible:
            self._end(request_id, Ending.REFUSED)
            return
        if planned.deadline_s is not None:
            heapq.heappush(self._deadlines, (planned.deadline_s, request_id))

    def _sweep(self) -> None:
        """End what has passed its deadline and does not run; what runs is seen at its boundary."""
        while self._deadlines and self._deadlines[0][0] < self._now:
            _, request_id = heapq.heappop(self._deadlines)
            live = self._live.get(request_id)
            if live is not None and not live.running:
                self._end(request_id, Ending.LATE)

    def _tick(self) -> None:
        """Decide until nothing more can be done at this instant."""
        while self._num_free and self.ledger.has_work:
            snapshot = self.ledger.snapshot(self._now, self._stack_costs)
            decision = self._decider(snapshot)
            self._decisions.append(decision)
            for request_id in decision.hopeless:
                self._end(request_id, Ending.HOPELESS)
            nexts = {name: self._live[name].course.units[0] for name in decision.admitted}
            self.ledger.admit(decision, nexts)
            for unit in decision.units:
                self._start_unit(unit, decision.tick)
            if not (decision.admitted or decision.hopeless):
                return

    def _stack_costs(self, key: str) -> StackTable:
        return StackTable(self._profiles.stacked_s(key))

    def _start_unit(self, unit: Placed, tick: int) -> None:
        self.ledger.start(unit, self._now, tick)
        self._num_free -= 1
        leader = self._live[unit.request_ids[0]]
        spread = leader.course.spreads[leader.num_done]
        seconds = unit.predicted_s
        if spread:
            seconds *= spread[mixed(self._seed, leader.planned.index, leader.num_done, spread)]
        for request_id in unit.request_ids:
            live = self._live[request_id]
            live.running = True
            if live.started_s is None:
                live.started_s = self._now
        end = self._now + unit.move_s + seconds
        heapq.heappush(self._ends, (end, unit.device, self._now, unit))

    def _finish_unit(self, unit: Placed, start: float) -> None:
        device_s = self._now - start
        self._num_free += 1
        self.ledger.stop(unit, device_s)
        group = [(name, self._live[name]) for name in unit.request_ids]
        items = [live.course.units[live.num_done].items for _, live in group]
        self._stacked[sum(items)] += 1
        for (request_id, live), own in zip(group, items, strict=True):
            part = device_s * own / sum(items)
            live.device_s += part
            live.num_done += 1
            live.running = False
            self._services.append(Service(live.planned.tenant, start, self._now, part))
            self._go_on(request_id, live)

    def _go_on(self, request_id: RequestId, live: _Live) -> None:
        deadline = live.planned.deadline_s
        if live.num_done == len(live.course.units):
            self._end(request_id, Ending.FINISHED)
        elif deadline is not None and self._now > deadline:
            self._end(request_id, Ending.LATE)
        else:
            self.ledger.proceed(request_id, live.course.units[live.num_done], self._now)

    def _end(self, request_id: RequestId, ending: Ending) -> None:
        live = self._live.pop(request_id)
        self.ledger.leave(request_id)
        planned = live.planned
        self._records.append(
            RequestRecord(
                index=planned.index,
                request_class=planned.request_class,
                tenant=planned.tenant,
                alone_s=live.course.profile.alone_s,
                arrived_s=planned.arrived_s,
                started_s=live.started_s,
                ended_s=self._now,
                deadline_s=planned.deadline_s,
                device_s=live.device_s,
                ending=ending,
            )
        )
