"""Traces as data: what ships can be made again, and asks for what it is named after."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ostinato.errors import BadInput, UnknownField
from ostinato.runtime.scheduler import FairShare, FifoRequest, Policy, policy_named
from ostinato.runtime.simulate import (
    Arrival,
    Profiles,
    Stage,
    Trace,
    TraceClass,
    load_profiles,
    load_trace,
    offline_optimum,
    optimum_figures,
    plan_arrivals,
    request_of,
    run_figures,
    save,
    simulate,
    stored_profiles,
    trace_names,
)
from ostinato.runtime.simulate.stored import FOLDER, files

NAMES = ("bursty-mix", "day", "sessions", "short-behind-long", "skewed-tenants", "small-tokens")


def _figures(name: str, policy: Policy) -> dict[str, float]:
    trace, profiles = load_trace(name), stored_profiles(name)
    optimum = optimum_figures(offline_optimum(trace, profiles))
    return run_figures(trace, simulate(trace, profiles, policy).run) | optimum


def test_stored_files_are_what_their_seeds_give() -> None:
    made = dict(files())
    assert {path.name: path.read_bytes() for path in FOLDER.iterdir()} == made
    assert trace_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_files_read_back_equal(name: str, tmp_path: Path) -> None:
    trace, profiles = load_trace(name), stored_profiles(name)
    save(trace, tmp_path / "trace.json")
    save(profiles, tmp_path / "profiles.json")
    assert load_trace(str(tmp_path / "trace.json")) == trace
    assert load_profiles(tmp_path / "profiles.json") == profiles


def test_short_jobs_come_at_gaps_of_twice_their_time() -> None:
    trace = load_trace("short-behind-long")
    first, *shorts = trace.arrivals
    assert trace.classes[first.request_class].num_inference_steps == 40
    assert len(shorts) >= 12
    assert {trace.classes[a.request_class].num_inference_steps for a in shorts} == {4}
    gaps = [b.at - a.at for a, b in pairwise(shorts)]
    assert min(gaps) >= 2.0
    fair, fifo = (_figures(trace.name, policy) for policy in (FairShare(), FifoRequest()))
    assert fair["short_p95_over_alone"] < 1.5 < 3 < fifo["short_p95_over_alone"]
    assert fair["makespan_s"] < 1.03 * fifo["makespan_s"]
    assert fair["optimum_short_p95_over_alone"] < fair["short_p95_over_alone"]


def test_sessions_could_all_be_on_time_and_are() -> None:
    deadline, fifo = (_figures("sessions", policy_named(n)) for n in ("deadline", "fifo-request"))
    assert deadline["optimum_deadline_hit_rate"] == 1.0
    assert deadline["deadline_hit_rate"] >= 0.99 > 0.5 > fifo["deadline_hit_rate"]
    trace = load_trace("sessions")
    due = {arrival.tenant for arrival in trace.arrivals if arrival.deadline is not None}
    assert len(due) >= 2
    assert any(arrival.deadline is None for arrival in trace.arrivals)


def test_skewed_tenants_get_equal_shares() -> None:
    fair, fifo = (_figures("skewed-tenants", policy) for policy in (FairShare(), FifoRequest()))
    assert fair["jain_index"] >= 0.95 > 0.6 > fifo["jain_index"]
    tenants = [arrival.tenant for arrival in load_trace("skewed-tenants").arrivals]
    counts = sorted(tenants.count(tenant) for tenant in set(tenants))
    assert len(counts) == 3
    assert counts[-1] == 10 * counts[0]


def test_bursts_come_in_three_shapes_and_leave_room_on_average() -> None:
    trace, profiles = load_trace("bursty-mix"), stored_profiles("bursty-mix")
    arrivals = plan_arrivals(trace, profiles)
    work_s = sum(profiles.of(planned.request_class).alone_s for planned in arrivals)
    assert len({planned.request_class for planned in arrivals}) == 3
    assert 0.3 < work_s / arrivals[-1].arrived_s < 0.9
    gaps = [b.arrived_s - a.arrived_s for a, b in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance > 1.2 * mean**2  # a Poisson process has 1


def test_small_tokens_gain_by_stacking() -> None:
    trace, profiles = load_trace("small-tokens"), stored_profiles("small-tokens")
    stacked = run_figures(trace, simulate(trace, profiles, FairShare()).run)
    alone = run_figures(trace, simulate(trace, profiles.unstacked(), FairShare()).run)
    assert stacked["throughput_per_s"] > 1.2 * alone["throughput_per_s"]
    assert stacked["mean_items"] > 2 > 1.01 > alone["mean_items"]


def test_a_day_is_drawn_at_its_load() -> None:
    trace, profiles = load_trace("day"), stored_profiles("day")
    assert trace.traffic is not None
    arrivals = plan_arrivals(trace, profiles)
    assert arrivals == plan_arrivals(trace, profiles)
    assert arrivals != plan_arrivals(replace(trace, seed=1), profiles)
    assert len({planned.request_class for planned in arrivals}) == 6
    assert [p.index for p in arrivals] == list(range(len(arrivals)))
    assert 0 <= arrivals[0].arrived_s < arrivals[-1].arrived_s < 86_400
    work_s = sum(profiles.of(planned.request_class).alone_s for planned in arrivals)
    assert work_s / (8 * 86_400) == pytest.approx(trace.traffic.load, rel=0.1)
    noon = sum(21_600 < planned.arrived_s < 64_800 for planned in arrivals)
    assert noon > 1.5 * (len(arrivals) - noon)


def test_times_are_in_units_of_a_class_alone() -> None:
    trace = load_trace("sessions")
    profiles = stored_profiles("sessions")
    slow = replace(
        profiles,
        classes={
            name: replace(p, stages=tuple(replace(s, unit_s=3 * s.unit_s) for s in p.stages))
            for name, p in profiles.classes.items()
        },
    )
    for quick, late in zip(plan_arrivals(trace, profiles), plan_arrivals(trace, slow), strict=True):
        assert late.arrived_s == pytest.approx(3 * quick.arrived_s)


def test_arrivals_become_requests() -> None:
    trace, profiles = load_trace("sessions"), stored_profiles("sessions")
    planned = next(p for p in plan_arrivals(trace, profiles) if p.deadline_s is not None)
    request = request_of(trace, planned, model="folder", prompt="a red circle")
    assert (request.model, request.height, request.num_inference_steps) == ("folder", 64, 4)
    assert request.deadline_s == pytest.approx(3.5 * profiles.of("piece").alone_s)
    other = request_of(trace, replace(planned, index=0), model="folder", prompt="a red circle")
    assert request.seed != other.seed


def test_wrong_traces_are_refused_with_all_that_is_wrong() -> None:
    wrong = Trace(
        name="wrong",
        seed=0,
        unit_class="x",
        classes={},
        arrivals=(Arrival(at=-1.0, request_class="y", deadline=0.0),),
        tenant_weights={"a": 0.0},
    )
    with pytest.raises(BadInput) as caught:
        wrong.validate()
    for part in ("'x' is not described", "'y' is not", "at is -1.0", "deadline is 0.0", "'a' is"):
        assert part in str(caught.value)
    empty = Trace(name="e", seed=0, unit_class="x", classes={"x": TraceClass(model="m")})
    with pytest.raises(BadInput, match="no arrivals"):
        empty.validate()


def test_traffic_is_checked() -> None:
    trace = load_trace("day")
    assert trace.traffic is not None
    wrong = replace(trace.traffic, swing=2.0, load=0.0, class_shares={"clip": -1.0})
    with pytest.raises(BadInput, match=r"swing is 2.0.*load.*shares"):
        replace(trace, traffic=wrong).validate()


def test_files_are_strict(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    document = json.loads((FOLDER / "sessions.json").read_text())
    path.write_text(json.dumps(document | {"arival": []}))
    with pytest.raises(UnknownField, match="arival"):
        load_trace(str(path))
    with pytest.raises(BadInput, match="short-behind-long"):
        load_trace("sesions")
    with pytest.raises(BadInput, match="measured"):
        stored_profiles("mine")


def test_wrong_profiles_are_refused(tmp_path: Path) -> None:
    profiles = stored_profiles("sessions")
    piece = profiles.of("piece")
    stages = (Stage(name="step", count=0, unit_s=-1.0, spread=(0.0,)),)
    wrong = Profiles(
        source="typed",
        classes={"piece": replace(piece, stages=stages), "none": replace(piece, stages=())},
        stack_s={"k": (0.0,)},
    )
    save(wrong, tmp_path / "p.json")
    with pytest.raises(BadInput, match=r"count 0.*unit_s is -1.0.*spread.*no stages.*stack_s"):
        load_profiles(tmp_path / "p.json")
    with pytest.raises(BadInput, match="no profile of class 'batch'"):
        plan_arrivals(load_trace("sessions"), replace(profiles, classes={"piece": piece}))
