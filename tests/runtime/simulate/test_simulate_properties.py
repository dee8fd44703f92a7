"""What the scheduler promises on any trace, whatever the policy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.errors import BadInput
from ostinato.runtime.scheduler import FairShare, Policy, Snapshot, policies
from ostinato.runtime.simulate import (
    Arrival,
    ClassProfile,
    Ending,
    Profiles,
    SimResult,
    Stage,
    TimeUnit,
    Trace,
    TraceClass,
    jain_index,
    offline_optimum,
    replay,
    simulate,
    tenant_fairness,
)
from ostinato.runtime.simulate.metrics import attained_s, backlogged_window
from ostinato.work import UNLIMITED, Resources
from support.traces import CheckedPool, profiles, traces

POLICIES = pytest.mark.parametrize("policy", policies(), ids=lambda policy: policy.name)
FEW = settings(
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def _work_s(trace: Trace, taken: Profiles) -> float:
    """Return seconds by which one device would have done everything, at the slowest draws."""
    return sum(
        stage.count * (stage.unit_s * max((1.0, *stage.spread)) + (profile.move_s or 0.0))
        for arrival in trace.arrivals
        for profile in [taken.of(arrival.request_class)]
        for stage in profile.stages
    )


@POLICIES
@FEW
@given(
    trace=traces(),
    taken=profiles(),
    num_devices=st.integers(1, 3),
    memory=st.sampled_from((3.0, 6.0, math.inf)),
)
def test_no_request_is_lost_or_starved(
    policy: Policy, trace: Trace, taken: Profiles, num_devices: int, memory: float
) -> None:
    capacity = replace(UNLIMITED, memory_bytes=memory)
    result = CheckedPool(trace, taken, policy, num_devices, capacity).run()
    records = result.run.requests
    assert [record.index for record in records] == list(range(len(trace.arrivals)))
    last = max(record.arrived_s for record in records)
    bound = last + _work_s(trace, taken) + 1e-6
    for record in records:
        assert record.ended_s <= bound
        feasible = taken.of(record.request_class).need.memory_bytes <= memory
        assert feasible != (record.ending is Ending.REFUSED)
        if record.deadline_s is None and feasible:
            assert record.ending is Ending.FINISHED
    charged = sum(record.device_s for record in records)
    assert charged == pytest.approx(sum(service.device_s for service in result.run.services))


@POLICIES
@FEW
@given(trace=traces(), taken=profiles(), num_devices=st.integers(1, 3))
def test_recorded_decisions_give_the_same_run(
    policy: Policy, trace: Trace, taken: Profiles, num_devices: int
) -> None:
    first = simulate(trace, taken, policy, num_devices=num_devices)
    assert simulate(trace, taken, policy, num_devices=num_devices) == first
    assert replay(trace, taken, first.decisions, num_devices=num_devices) == first
    with pytest.raises(BadInput, match="was recorded as"):
        replay(trace, taken, first.decisions[1:], num_devices=num_devices)


@POLICIES
@FEW
@given(trace=traces(deadlines=False), taken=profiles(), num_devices=st.integers(1, 3))
def test_no_policy_beats_the_optimum(
    policy: Policy, trace: Trace, taken: Profiles, num_devices: int
) -> None:
    steady = replace(
        taken,
        classes={
            name: replace(p, stages=tuple(replace(stage, spread=()) for stage in p.stages))
            for name, p in taken.classes.items()
        },
    )
    run = simulate(trace, steady, policy, num_devices=num_devices).run
    best = offline_optimum(trace, steady, num_devices=num_devices)
    mean_s = sum(record.latency_s for record in run.requests) / len(run.requests)
    assert run.makespan_s >= best.makespan_bound_s * (1 - 1e-9)
    assert mean_s >= best.mean_latency_bound_s * (1 - 1e-9)


@FEW
@given(trace=traces(deadlines=False, priorities=False), taken=profiles(moves=False))
def test_an_overdue_request_waits_for_one_unit_of_each_that_is_there(
    trace: Trace, taken: Profiles
) -> None:
    """Whoever comes after a request is overdue, or has had a turn since, is behind it.

    One that has come by then may still wait for admission in the tick that first shows it overdue.
    """
    alone = replace(trace, arrivals=tuple(replace(a, tenant="a") for a in trace.arrivals))
    policy = FairShare(patience=2.0)
    pool = CheckedPool(alone, taken.unstacked(), policy)
    pool.run()
    ran_since: dict[str, tuple[set[str], set[str]]] = {}  # by overdue: who was there, who ran
    for seen, decision in pool.ticks:
        for entry in seen.ready:
            due_s = entry.waiting_since_s + policy.patience * entry.unit_s
            if due_s < seen.now and entry.request_id not in ran_since:
                ran_since[entry.request_id] = (_there_by(due_s, seen), set())
        for unit in decision.units:
            (name,) = unit.request_ids
            ran_since.pop(name, None)
            for there, ran in ran_since.values():
                assert name in there - ran
                ran.add(name)


def _there_by(instant: float, seen: Snapshot) -> set[str]:
    """Return who has waited since then or longer, for a turn or for admission."""
    ready = {e.request_id for e in seen.ready if e.waiting_since_s <= instant}
    return ready | {w.request_id for w in seen.waiting if w.arrived_s <= instant}


def _overloaded(patience: float) -> SimResult:
    """Run a long request, and 250 s of short ones that ask for one and a half of the device."""
    shorts = [Arrival(at=index / 3, request_class="short") for index in range(750)]
    trace = Trace(
        name="overload",
        seed=0,
        unit_class="short",
        time_unit=TimeUnit.SECONDS,
        classes={"short": TraceClass(model="m"), "long": TraceClass(model="m")},
        arrivals=(Arrival(at=0.0, request_class="long"), *shorts),
    )
    taken = Profiles(
        source="typed",
        classes={
            "short": ClassProfile(stages=(Stage(name="step", count=1, unit_s=0.5),)),
            "long": ClassProfile(stages=(Stage(name="step", count=5, unit_s=1.0),)),
        },
    )
    return simulate(trace, taken, FairShare(patience=patience))


def test_short_requests_without_end_do_not_starve_a_long_one() -> None:
    patient, endless = _overloaded(patience=20.0), _overloaded(patience=math.inf)
    assert patient.run.requests[0].ended_s < 250 < endless.run.requests[0].ended_s


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    weights=st.lists(st.sampled_from((1.0, 2.0, 5.0)), min_size=2, max_size=4),
    unit_s=st.lists(st.sampled_from((0.2, 0.5, 1.0)), min_size=4, max_size=4),
    num_devices=st.integers(1, 3),
)
def test_shares_converge_to_weights_under_backlog(
    weights: list[float], unit_s: list[float], num_devices: int
) -> None:
    names = [f"t{index}" for index in range(len(weights))]
    trace = Trace(
        name="backlog",
        seed=0,
        unit_class="t0",
        time_unit=TimeUnit.SECONDS,
        classes={name: TraceClass(model="m") for name in names},
        arrivals=tuple(
            Arrival(at=0.0, request_class=name, tenant=name)
            for index, name in enumerate(names)
            for _ in range(int(30 * weights[index] / unit_s[index] / 5))
        ),
        tenant_weights=dict(zip(names, weights, strict=True)),
    )
    classes = {
        name: ClassProfile(stages=(Stage(name="step", count=5, unit_s=unit_s[index]),))
        for index, name in enumerate(names)
    }
    run = simulate(
        trace, Profiles(source="typed", classes=classes), FairShare(), num_devices=num_devices
    ).run
    fairness = tenant_fairness(run, trace.tenant_weights)
    window = backlogged_window(run.requests)
    assert fairness is not None
    assert window is not None
    assert fairness > 0.99
    had = attained_s(run.services, window)
    assert jain_index([had[name] / trace.tenant_weights[name] for name in names]) == fairness


def test_room_is_kept_for_one_that_waits_long() -> None:
    """Small requests may pass a large one that does not fit, but not for ever."""
    arrivals = [Arrival(at=0.5 * index, request_class="small") for index in range(250)]
    trace = Trace(
        name="room",
        seed=0,
        unit_class="small",
        time_unit=TimeUnit.SECONDS,
        classes={"small": TraceClass(model="m"), "large": TraceClass(model="m")},
        arrivals=(*arrivals, Arrival(at=1.0, request_class="large")),
    )

    def taking(memory: float, seconds: float) -> ClassProfile:
        stages = (Stage(name="step", count=1, unit_s=seconds),)
        return ClassProfile(stages=stages, need=Resources(memory_bytes=memory))

    taken = Profiles(
        source="typed", classes={"small": taking(1.0, 0.49), "large": taking(2.0, 1.0)}
    )
    capacity = replace(UNLIMITED, memory_bytes=2.0)
    for policy in policies():
        run = simulate(trace, taken, policy, num_devices=2, capacity=capacity).run
        (large,) = [r for r in run.requests if r.request_class == "large"]
        assert large.ended_s < 120, policy.name
