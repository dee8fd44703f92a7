"""What one engine did, from its witness: when requests came and ended, and every unit between."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.runtime.scheduler import Decision, Outcome, Snapshot, UnitRecord, Waiting
from ostinato.runtime.simulate import (
    Ending,
    Planned,
    Profiles,
    RequestRecord,
    RunRecord,
    Service,
)
from ostinato.runtime.witness import Bystander
from ostinato.tasks import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """at_s: the process's monotonic clock."""

    outcome: Outcome
    at_s: float


class Recorder(Bystander):
    """Keeps what an engine tells; read it once the engine is closed, its last unit comes late."""

    def __init__(self) -> None:
        self.arrived_s: dict[RequestId, float] = {}
        self.units: list[UnitRecord] = []
        self.ends: dict[RequestId, Ended] = {}
        self.hopeless: set[RequestId] = set()

    def submitted(self, waiting: Waiting, model: str) -> None:
        """Keep when it came."""
        del model
        self.arrived_s[waiting.request_id] = waiting.arrived_s

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        """Keep who was given up."""
        del snapshot
        self.hopeless.update(decision.hopeless)

    def executed(self, unit: UnitRecord) -> None:
        """Keep the unit."""
        self.units.append(unit)

    def ended(self, request_id: RequestId, outcome: Outcome, now: float) -> None:
        """Keep how and when."""
        self.ends[request_id] = Ended(outcome=outcome, at_s=now)

    def spans_s(self) -> list[tuple[UnitRecord, float]]:
        """Return every unit with its seconds, what the engine did between units included.

        That counts from the end of the unit before it, or from its request's arrival if the device
        had nothing to do until then. Loading is left out.
        """
        found: list[tuple[UnitRecord, float]] = []
        before_s = 0.0
        for unit in self.units:
            arrived_s = min(self.arrived_s[request_id] for request_id in unit.request_ids)
            found.append((unit, unit.end_s - max(before_s, arrived_s) - unit.load_s))
            before_s = unit.end_s
        return found


def run_record(
    recorder: Recorder,
    planned: Mapping[RequestId, Planned],
    profiles: Profiles,
    started_s: float,
) -> RunRecord:
    """Return the run of these requests as the simulator would record it.

    Latencies count from the planned arrival, so a submission that came late is not forgiven.
    """
    units = [u for u in recorder.units if all(name in planned for name in u.request_ids)]
    spent: defaultdict[RequestId, float] = defaultdict(float)
    first_s: dict[RequestId, float] = {}
    services: list[Service] = []
    for unit in units:
        part_s = unit.device_s / len(unit.request_ids)
        for request_id, tenant in zip(unit.request_ids, unit.tenants, strict=True):
            spent[request_id] += part_s
            first_s.setdefault(request_id, unit.start_s - started_s)
            services.append(
                Service(tenant, unit.start_s - started_s, unit.end_s - started_s, part_s)
            )
    requests = [
        RequestRecord(
            index=asked.index,
            request_class=asked.request_class,
            tenant=asked.tenant,
            alone_s=profiles.of(asked.request_class).alone_s,
            arrived_s=asked.arrived_s,
            started_s=first_s.get(request_id),
            ended_s=recorder.ends[request_id].at_s - started_s,
            deadline_s=asked.deadline_s,
            device_s=spent[request_id],
            ending=_ending(recorder, request_id, asked),
        )
        for request_id, asked in planned.items()
    ]
    stacked = Counter(unit.items for unit in units)
    return RunRecord(
        requests=tuple(sorted(requests, key=lambda request: request.index)),
        services=tuple(services),
        stacked=dict(sorted(stacked.items())),
        num_devices=1,
    )


def _ending(recorder: Recorder, request_id: RequestId, asked: Planned) -> Ending:
    if recorder.ends[request_id].outcome is Outcome.FINISHED:
        return Ending.FINISHED
    if request_id in recorder.hopeless:
        return Ending.HOPELESS
    due_s = asked.deadline_s
    return Ending.FAILED if due_s is None else Ending.LATE
