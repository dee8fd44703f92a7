"""What an engine would tell a witness: the real ledger and decisions under a clock that we turn.

Units take what their job says, times a factor from a seeded stream, so measured and predicted
seconds differ. Nothing is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from ostinato.runtime.scheduler import (
    Decision,
    FairShare,
    Ledger,
    Level,
    NextUnit,
    Outcome,
    Placed,
    Policy,
    StackTable,
    UnitRecord,
    Waiting,
    Witness,
    decide,
)
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources

MODEL = "builtin"
STACK_S = (0.1, 0.15, 0.2, 0.25)  # of 1, 2, 3, 4 stacked calls


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request of equal units; stop_after: it is cancelled after so many."""

    name: str
    tenant: str = "default"
    arrived_s: float = 0.0
    num_units: int = 3
    unit_s: float = 0.1
    stack: str | None = None
    stop_after: int | None = None
    memory_bytes: float = 1.0


@dataclass
class Feed:
    """Plays jobs to a witness; keeps what it told about units and ends."""

    witness: Witness
    jobs: list[Job]
    policy: Policy = field(default_factory=FairShare)
    num_devices: int = 1
    room_bytes: float = float("inf")
    units: list[UnitRecord] = field(default_factory=list)
    ends: dict[str, tuple[Outcome, float]] = field(default_factory=dict)

    def play(self) -> Feed:
        """Run until every job has ended."""
        room = replace(UNLIMITED, memory_bytes=self.room_bytes)
        self._ledger = Ledger(capacity=room, num_devices=self.num_devices)
        self._random, self._now = Random(7), 0.0
        self._done = {job.name: 0 for job in self.jobs}
        self._flying: list[tuple[float, UnitRecord, Placed]] = []
        to_come = sorted(self.jobs, key=lambda job: job.arrived_s)
        while to_come or len(self.ends) < len(self.jobs):
            while to_come and to_come[0].arrived_s <= self._now:
                self._submit(to_come.pop(0))
            snapshot = self._ledger.snapshot(self._now, lambda key: StackTable(STACK_S))
            decision = decide(snapshot, self.policy)
            self.witness.decided(snapshot, decision)
            self._apply(decision)
            if decision.admitted:
                continue
            soonest = [entry[0] for entry in self._flying] + [j.arrived_s for j in to_come[:1]]
            self._now = max(self._now, min(soonest))
            for entry in [e for e in self._flying if e[0] <= self._now]:
                self._land(entry)
            self._tell_level()
        return self

    def _job(self, request_id: str) -> Job:
        return next(job for job in self.jobs if job.name == request_id)

    def _submit(self, job: Job) -> None:
        waiting = Waiting(
            request_id=RequestId(job.name),
            tenant=job.tenant,
            priority=0,
            arrival=self.jobs.index(job),
            arrived_s=job.arrived_s,
            deadline_s=None,
            need=Resources(memory_bytes=job.memory_bytes),
            remaining_s=job.num_units * job.unit_s,
        )
        self._ledger.submit(waiting)
        self.witness.submitted(waiting, MODEL)

    def _next(self, job: Job) -> NextUnit:
        left = job.num_units - self._done[job.name]
        return NextUnit(unit_s=job.unit_s, remaining_s=left * job.unit_s, stack=job.stack)

    def _apply(self, decision: Decision) -> None:
        nexts = {name: self._next(self._job(name)) for name in decision.admitted}
        self._ledger.admit(decision, nexts)
        for placed in decision.units:
            self._ledger.start(placed, self._now, decision.tick)
            group = [self._job(name) for name in placed.request_ids]
            device_s = placed.predicted_s * self._random.uniform(0.8, 1.3)
            unit = UnitRecord(
                tick=decision.tick,
                device=placed.device,
                model=MODEL,
                request_ids=placed.request_ids,
                tenants=tuple(job.tenant for job in group),
                nodes=("denoise",) * len(group),
                kind="diffusion_step",
                ops=("transformer.forward",),
                items=len(group),
                start_s=self._now,
                end_s=self._now + device_s,
                predicted_s=placed.predicted_s,
                device_s=device_s,
                load_s=0.5 if decision.tick == 1 else 0.0,
            )
            self._flying.append((unit.end_s, unit, placed))

    def _land(self, entry: tuple[float, UnitRecord, Placed]) -> None:
        self._flying.remove(entry)
        _, unit, placed = entry
        self._ledger.stop(placed, unit.device_s)
        self.units.append(unit)
        self.witness.executed(unit)
        for request_id in unit.request_ids:
            job = self._job(request_id)
            self._done[request_id] += 1
            if self._done[request_id] in (job.num_units, job.stop_after):
                finished = self._done[request_id] == job.num_units
                outcome = Outcome.FINISHED if finished else Outcome.CANCELLED
                self._ledger.leave(request_id)
                self.ends[request_id] = outcome, self._now
                self.witness.ended(request_id, outcome, self._now)
            else:
                self._ledger.proceed(request_id, self._next(job), self._now)

    def _tell_level(self) -> None:
        shown = self._ledger.snapshot(self._now)
        self.witness.level(
            Level(
                waiting=len(shown.waiting),
                ready=len(shown.ready),
                reserved=self._ledger.reservations.held,
                room=self._ledger.reservations.room,
                page_bytes={MODEL: 4096 * len(shown.ready)},
                weight_bytes={MODEL: 1000},
            )
        )


def mixed() -> list[Job]:
    """Return jobs of three tenants; two can share forwards, one is cancelled."""
    return [
        Job(name="long", tenant="batch", num_units=12, unit_s=0.2),
        Job(name="a", tenant="ada", arrived_s=0.3, num_units=4, stack="s"),
        Job(name="b", tenant="ada", arrived_s=0.3, num_units=4, stack="s"),
        Job(name="c", tenant="bob", arrived_s=0.5, num_units=5, stop_after=2),
        Job(name="late", tenant="bob", arrived_s=9.0, num_units=1),
    ]
