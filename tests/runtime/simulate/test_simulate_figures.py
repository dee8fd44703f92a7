"""Metrics and the offline optimum, on runs small enough to work out by hand."""

from __future__ import annotations

import pytest

from ostinato.runtime.simulate import (
    Arrival,
    ClassProfile,
    Ending,
    Profiles,
    RequestRecord,
    RunRecord,
    Service,
    Stage,
    TimeUnit,
    Trace,
    TraceClass,
    deadline_hit_rate,
    jain_index,
    latencies,
    offline_optimum,
    tenant_fairness,
    throughput_per_s,
)
from ostinato.runtime.simulate.metrics import attained_s, backlogged_window, utilization
from ostinato.runtime.simulate.optimum import (
    Job,
    earliest_deadline_ends,
    makespan_bound,
    shortest_remaining_ends,
)


def _record(
    tenant: str,
    arrived_s: float,
    ended_s: float,
    *,
    deadline_s: float | None = None,
    ending: Ending = Ending.FINISHED,
) -> RequestRecord:
    return RequestRecord(
        index=0,
        request_class="c",
        tenant=tenant,
        alone_s=2.0,
        arrived_s=arrived_s,
        started_s=arrived_s,
        ended_s=ended_s,
        deadline_s=deadline_s,
        device_s=1.0,
        ending=ending,
    )


def _job(arrived_s: float, work_s: float, deadline_s: float | None = None) -> Job:
    return Job(
        request_class="c",
        arrived_s=arrived_s,
        work_s=work_s,
        least_s=work_s,
        deadline_s=deadline_s,
    )


def test_latencies_are_of_what_finished() -> None:
    records = [_record("a", 1.0, 1.0 + seconds) for seconds in (2.0, 4.0, 6.0)]
    records.append(_record("a", 0.0, 99.0, ending=Ending.LATE))
    latency = latencies(records)["c"]
    assert (latency.count, latency.p50_s, latency.p50_over_alone) == (3, 4.0, 2.0)
    assert latency.mean_s == pytest.approx(4.0)
    assert latency.p95_s == pytest.approx(5.8)
    assert latency.p95_over_alone == pytest.approx(2.9)


def test_a_hit_is_finished_and_on_time() -> None:
    records = [
        _record("a", 0.0, 1.0),
        _record("a", 0.0, 2.0, deadline_s=2.0),
        _record("a", 0.0, 2.1, deadline_s=2.0),
        _record("a", 0.0, 1.0, deadline_s=2.0, ending=Ending.HOPELESS),
        _record("a", 0.0, 1.0, deadline_s=2.0),
    ]
    assert deadline_hit_rate(records) == 0.5
    assert deadline_hit_rate(records[:1]) is None


def test_shares_are_compared_while_all_have_work() -> None:
    records = (_record("a", 0.0, 10.0), _record("b", 2.0, 4.0), _record("b", 4.0, 8.0))
    assert backlogged_window(records) == (2.0, 8.0)
    assert backlogged_window(records[:1]) is None
    apart = (_record("a", 0.0, 1.0), _record("b", 2.0, 3.0))
    assert backlogged_window(apart) is None
    services = (
        Service("a", 0.0, 4.0, 4.0),
        Service("b", 4.0, 6.0, 1.0),
        Service("a", 7.0, 9.0, 2.0),
    )
    assert attained_s(services, (2.0, 8.0)) == {"a": 3.0, "b": 1.0}
    run = RunRecord(requests=records, services=services, stacked={1: 3}, num_devices=2)
    assert tenant_fairness(run, {"a": 3.0}) == 1.0
    assert tenant_fairness(run, {}) == pytest.approx(16 / 20)
    assert run.makespan_s == 10.0
    assert throughput_per_s(run) == 0.3
    assert utilization(run) == 0.35


def test_jain_index() -> None:
    assert jain_index([2.0, 2.0, 2.0]) == 1.0
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain_index([0.0, 0.0]) == 1.0


def test_shortest_remaining_preempts() -> None:
    jobs = [_job(0.0, 10.0), _job(1.0, 2.0), _job(2.0, 0.5)]
    assert shortest_remaining_ends(jobs) == pytest.approx([12.5, 3.5, 2.5])
    assert shortest_remaining_ends(jobs, num_devices=2) == pytest.approx([10.5, 3.0, 2.5])
    assert shortest_remaining_ends(jobs, speed=2.0) == pytest.approx([6.25, 2.0, 2.25])


def test_the_earliest_deadline_preempts() -> None:
    jobs = [_job(0.0, 4.0, 9.0), _job(1.0, 2.0, 4.0)]
    assert earliest_deadline_ends(jobs) == pytest.approx([6.0, 3.0])


def test_makespan_bound_is_a_busy_period_or_a_request_alone() -> None:
    assert makespan_bound([_job(0.0, 2.0), _job(1.0, 2.0)]) == 4.0
    assert makespan_bound([_job(0.0, 2.0), _job(10.0, 2.0)]) == 12.0
    assert makespan_bound([_job(3.0, 2.0), _job(4.0, 2.0)]) == 4.0
    assert makespan_bound([_job(0.0, 6.0), _job(0.0, 2.0)], num_devices=2) == 6.0
    assert makespan_bound([]) == 0.0


def _optimum_of(deadlines: tuple[float | None, float | None]) -> float | None:
    trace = Trace(
        name="t",
        seed=0,
        unit_class="c",
        time_unit=TimeUnit.SECONDS,
        classes={"c": TraceClass(model="m")},
        arrivals=tuple(Arrival(at=0.0, request_class="c", deadline=d) for d in deadlines),
    )
    stage = Stage(name="step", count=2, unit_s=1.0, stack="k")
    profiles = Profiles(
        source="typed", classes={"c": ClassProfile(stages=(stage,))}, stack_s={"k": (1.0, 1.2)}
    )
    best = offline_optimum(trace, profiles)
    assert best.makespan_bound_s == pytest.approx(2.4)  # both ride in stacks of two
    assert best.mean_latency_bound_s == pytest.approx(2.0)  # nobody beats its time alone
    assert best.latency["c"].mean_s == pytest.approx(3.0)  # nothing stacked
    assert best.jain_index == 1.0
    return best.deadline_hit_rate


def test_the_optimum_knows_stacks_and_deadlines() -> None:
    assert _optimum_of((None, None)) is None
    assert _optimum_of((4.0, 2.0)) == 1.0
    assert _optimum_of((3.0, 3.0)) == 0.5
