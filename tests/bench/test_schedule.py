"""The schedule benchmark replays a trace on real engines with equal bytes; it asserts no time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ostinato.bench import BenchArguments, _schedule_figures, schedule
from ostinato.bench._schedule_record import Ended, Recorder, run_record
from ostinato.bench._schedule_replay import Ends, _ends
from ostinato.bench._threads import torch_threads
from ostinato.bench.alternate import MIN_ROUNDS
from ostinato.errors import DeadlineExceeded, InternalError, OstinatoError
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import EULER, WanSizes, write_tiny_wan
from ostinato.runtime import Handle
from ostinato.runtime.scheduler import FairShare, Outcome, UnitRecord
from ostinato.runtime.simulate import ClassProfile, Ending, Planned, Profiles, Stage
from ostinato.tasks import RequestId


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> _schedule_figures.Outcome:
    folder = write_tiny_wan(tmp_path_factory.mktemp("schedule") / "small", EULER, WanSizes(), 3)
    case = schedule.Case(
        trace="bursty-mix", policy=FairShare(), max_batch=2, rounds=1, quick_arrivals=5, clips=True
    )
    with torch_threads(1):
        return schedule.run_case(case, {schedule.SMALL_WAN: open_model(folder)}, quick=True)


def test_every_output_is_that_of_the_request_alone(outcome: _schedule_figures.Outcome) -> None:
    for ran in (outcome.baseline, outcome.trial):
        assert ran.ends == Ends(failed=0, wrong_outputs=0)
        assert ran.measured["requests_finished"] == 5
    assert outcome.clips == Ends(failed=0, wrong_outputs=0)


def test_a_request_that_fails_is_counted_and_is_no_equal_output() -> None:
    def handle(fate: OstinatoError | None) -> Handle:
        found = Handle.__new__(Handle)

        def result(timeout_s: float | None = None) -> object:
            if fate is not None:
                raise fate
            return SimpleNamespace(latents=torch.ones(1))

        found.result = result  # type: ignore[assignment, method-assign]
        return found

    fates = (None, InternalError("a fault"), DeadlineExceeded("late"), None)
    handles = [handle(fate) for fate in fates]
    latents = [torch.ones(1), torch.ones(1), torch.ones(1), torch.zeros(1)]
    assert _ends(handles, latents) == Ends(failed=1, wrong_outputs=2)


def test_the_simulator_tells_of_the_same_figures(outcome: _schedule_figures.Outcome) -> None:
    for ran in (outcome.baseline, outcome.trial):
        assert ran.predicted.keys() == ran.measured.keys()
        assert math.isfinite(ran.error("makespan_s"))


def test_profiles_hold_the_units_that_a_request_has(outcome: _schedule_figures.Outcome) -> None:
    stages = {s.name: s for s in outcome.profiles.of("small").stages}
    assert {name: stage.count for name, stage in stages.items()} == {
        "encode_prompt": 1,
        "denoise": 4,
    }
    key = stages["denoise"].stack
    if key is not None:  # a processor may forbid these stacks
        assert len(outcome.profiles.stack_s[key]) == 2


def test_figures_name_every_target(outcome: _schedule_figures.Outcome) -> None:
    figures = dict(outcome.trial.measured)
    figures |= {"short_p95_over_alone": 1.0, "deadline_hit_rate": 1.0, "jain_index": 0.9}
    ran = replace(outcome.trial, measured=figures, predicted=figures)
    optimum = {f"optimum_{name}": 1.0 for name in ("short_p95_over_alone", "deadline_hit_rate")}
    same = replace(outcome, baseline=ran, trial=ran, optimum=optimum)
    slower = replace(ran, measured={**figures, "makespan_s": 2 * figures["makespan_s"]})
    found = _schedule_figures.figures_of(
        {
            case.trace: replace(same, trial=slower) if case.trace == "short-behind-long" else same
            for case in schedule.CASES
        }
    )
    assert found.keys() >= schedule.TARGETS.keys()
    assert found["makespan_ratio_large"] == pytest.approx(2.0)
    assert found["makespan_error_most"] == pytest.approx(0.5)
    assert (found["outputs_equal"], found["p95_error_most"]) == (1, 0)
    one = Ends(failed=1, wrong_outputs=1)
    for bad in (replace(same, trial=replace(ran, ends=one)), replace(same, clips=one)):
        figures = _schedule_figures.figures_of({case.trace: bad for case in schedule.CASES})
        assert figures["outputs_equal"] == 0
        assert figures["failed_requests"] == len(schedule.CASES)


def test_a_ratio_has_an_interval_over_rounds(outcome: _schedule_figures.Outcome) -> None:
    rounds = tuple({"makespan_s": seconds} for seconds in (2.0, 2.0, 3.0, 2.0, 2.0, 2.0))
    base = tuple({"makespan_s": 1.0} for _ in rounds)
    low, high = _schedule_figures.interval(
        replace(
            outcome,
            trial=replace(outcome.trial, rounds=rounds),
            baseline=replace(outcome.baseline, rounds=base),
        ),
        "makespan_s",
        0,
    )
    assert 2.0 <= low <= high <= 3.0


def test_ratios_with_a_target_have_six_rounds_or_more() -> None:
    rounds = {case.trace: case.rounds for case in schedule.CASES}
    assert min(rounds["short-behind-long"], rounds["small-tokens"]) >= MIN_ROUNDS


def test_a_figure_that_only_one_side_has_is_a_wrong_prediction() -> None:
    ran = _schedule_figures.Ran(
        measured={"a": 1.0},
        rounds=(),
        predicted={"b": 1.0},
        ends=Ends(failed=0, wrong_outputs=0),
    )
    assert ran.error("a") == ran.error("b") == math.inf
    assert ran.error("neither") == 0


def _unit(names: tuple[str, ...], start_s: float, end_s: float, load_s: float = 0.0) -> UnitRecord:
    return UnitRecord(
        tick=1,
        device=0,
        model="m",
        request_ids=tuple(map(RequestId, names)),
        tenants=names,
        nodes=("denoise",) * len(names),
        kind="denoise_step",
        ops=("transformer.predict",),
        items=len(names),
        start_s=start_s,
        end_s=end_s,
        predicted_s=1.0,
        device_s=end_s - start_s,
        load_s=load_s,
    )


@pytest.fixture
def recorder() -> Recorder:
    """Two requests that shared a unit; one missed its deadline, one was cut off."""
    found = Recorder()
    found.arrived_s = {RequestId("r1"): 10.0, RequestId("r2"): 11.5}
    found.units = [_unit(("r1",), 10.5, 12.0, 0.25), _unit(("r1", "r2"), 12.5, 14.5)]
    found.ends = {
        RequestId("r1"): Ended(outcome=Outcome.FINISHED, at_s=14.5),
        RequestId("r2"): Ended(outcome=Outcome.FAILED, at_s=14.5),
    }
    return found


def test_a_unit_lasts_from_the_end_of_the_one_before(recorder: Recorder) -> None:
    assert [seconds for _, seconds in recorder.spans_s()] == [1.75, 2.5]


@pytest.mark.parametrize(
    ("deadline_s", "hopeless", "ending"),
    [(None, False, Ending.FAILED), (3.0, False, Ending.LATE), (3.0, True, Ending.HOPELESS)],
)
def test_a_run_is_recorded_as_the_simulator_does(
    recorder: Recorder, deadline_s: float | None, hopeless: bool, ending: Ending
) -> None:
    if hopeless:
        recorder.hopeless.add(RequestId("r2"))
    profiles = Profiles(
        source="a test",
        classes={"c": ClassProfile(stages=(Stage(name="denoise", count=2, unit_s=1.0),))},
    )
    planned = {
        RequestId(f"r{i}"): Planned(
            index=i,
            request_class="c",
            tenant=f"r{i}",
            priority=0,
            arrived_s=float(i),
            deadline_s=deadline_s if i == 2 else None,
        )
        for i in (1, 2)
    }
    run = run_record(recorder, planned, profiles, started_s=9.0)
    first, second = run.requests
    assert (first.ending, second.ending) == (Ending.FINISHED, ending)
    assert (first.latency_s, second.latency_s) == (4.5, 3.5)
    assert (first.started_s, second.started_s) == (1.5, 3.5)
    assert (first.device_s, second.device_s) == (2.5, 1.0)
    assert sum(service.device_s for service in run.services) == 3.5
    assert run.stacked == {1: 1, 2: 1}


@pytest.mark.slow
def test_the_quick_benchmark_ends_with_its_report() -> None:
    report = schedule.run(BenchArguments(quick=True, seed=3, threads=1))
    assert report.figures["outputs_equal"] == 1
    assert set(report.targets) <= set(report.figures)
    assert json.loads(report.to_json())["detail"]["traces"].keys() == {
        case.trace for case in schedule.CASES
    }
