"""The overhead benchmark runs end to end and compares equal outputs; it asserts no time."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ostinato.bench import overhead
from ostinato.bench._arguments import BenchArguments
from ostinato.bench._small_wan import STEP_S, ClipSize, nearest
from ostinato.bench._steps import StepClock, SteppedRequest
from ostinato.loop.observe import Unit
from ostinato.models.registry import open_model
from ostinato.report import Report
from ostinato.request import Request
from ostinato.runtime import Engine
from ostinato.tasks import OutputName, TaskType

RATIOS = (
    "engine_overhead_ratio",
    "engine_overhead_ratio_unipc",
    "engine_overhead_ratio_builtin",
    "wall_ratio_vs_diffusers",
)


@pytest.fixture(scope="module")
def report() -> Report:
    return overhead.run(BenchArguments(quick=True, seed=3, threads=1))


def test_outputs_are_equal(report: Report) -> None:
    assert report.figures["outputs_equal"] == 1


def test_every_ratio_is_measured_with_its_interval(report: Report) -> None:
    document = json.loads(report.to_json())
    assert set(RATIOS) == set(document["detail"]["ratios"])
    for name in RATIOS:
        entry = document["detail"]["ratios"][name]
        assert 0 < entry["low"] <= entry["value"] == report.figures[name] <= entry["high"]
        seconds = document["detail"]["seconds"][name]
        ours, theirs = (len(values) for values in seconds.values())
        assert ours == theirs >= 6
    upper = document["detail"]["ratios"]["wall_ratio_vs_diffusers"]["high"]
    assert report.figures["wall_ratio_vs_diffusers_upper"] == upper
    assert set(report.targets) <= set(report.figures)


def test_the_threads_that_were_in_force_are_told(report: Report) -> None:
    assert report.environment["threads"] == "1"


def test_the_step_was_chosen_from_what_was_timed(report: Report) -> None:
    calibration = json.loads(report.to_json())["detail"]["calibration"]
    times = [entry["step_s"] for entry in calibration]
    assert all(step_s <= STEP_S for step_s in times[:-1]), "it stops at the first that is longer"
    sizes = [
        ClipSize(**{k: entry[k] for k in ("height", "width", "step_s")}) for entry in calibration
    ]
    asked = json.loads(report.to_json())["detail"]["request"]
    assert nearest(sizes).height == asked["height"]


def test_nearest_is_by_ratio() -> None:
    sizes = [ClipSize(height=16, width=16, step_s=STEP_S * factor) for factor in (0.4, 0.7, 1.3, 3)]
    assert nearest(sizes) is sizes[2]


NUM_BLOCKS = 15  # a ring has 12 pages


class Stepped:
    """A recorded request of the tiny built-in model, so long that pages are written again."""

    def __init__(self, folder: Path) -> None:
        source = open_model(folder)
        self.engine, self.clock = Engine(observer=(clock := StepClock())), clock
        self.model = self.engine.add(source)
        request = Request(
            model=source.card.model_id,
            task=TaskType.TEXT_TO_VIDEO,
            prompt="a red circle",
            num_frames=12 * NUM_BLOCKS,
            num_inference_steps=1,
            outputs=(OutputName.LATENTS,),
        )
        self.stepped = SteppedRequest(self.engine, self.clock, self.model, request)


@pytest.fixture
def small(tiny_builtin_folder: Path) -> Iterator[Stepped]:
    found = Stepped(tiny_builtin_folder)
    with found.engine:
        yield found


def test_every_step_of_the_loop_is_recorded(small: Stepped) -> None:
    ops = [call.op for call in small.clock.recorded]
    assert ops[0] == "encode_text"
    assert ops.count("predict") == NUM_BLOCKS
    assert ops.count("store") == NUM_BLOCKS - 1
    assert small.stepped.num_steps == len(ops)


def test_bare_calls_give_the_bytes_of_the_engine(small: Stepped) -> None:
    assert small.stepped.outputs_equal()
    small.stepped.alternate(1)
    assert small.stepped.outputs_equal()


def test_other_bytes_are_seen(small: Stepped) -> None:
    call = next(call for call in small.clock.recorded if call.op == "predict")
    prediction = call.outputs["prediction"]
    assert isinstance(prediction, torch.Tensor)
    prediction.view(-1)[-1] += 1e-6
    assert not small.stepped.outputs_equal()


def test_who_comes_first_turns_round_and_every_step_but_the_last_is_timed(
    small: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    collecting: list[bool] = []
    watch = small.clock.watch

    def enter(unit: Unit) -> StepClock | None:
        found = watch(unit)
        if unit.node == small.clock.node:
            order.append(f"engine {small.clock.num_steps - 1}")
            collecting.append(gc.isenabled())
        return found

    calls = [
        (lambda _step=call.step, **inputs: order.append(f"bare {_step}"), call)
        for _, call in small.stepped._calls
    ]
    monkeypatch.setattr(small.clock, "watch", enter)
    monkeypatch.setattr(small.stepped, "_calls", calls)
    engine_s, bare_s = small.stepped.alternate(2)
    steps = range(small.stepped.num_steps)
    before = [name for step in steps for name in (f"bare {step}", f"engine {step}")]
    after = [name for step in steps for name in (f"engine {step}", f"bare {step}")][:-1]
    assert order == before + after
    assert [len(seconds) for seconds in (*engine_s, *bare_s)] == [len(steps) - 1] * 4
    assert min(map(min, engine_s)) > 0
    # The calls were replaced by nothing, so nearly all of a step is the engine's own.
    assert sum(map(sum, bare_s)) < 0.5 * sum(map(sum, engine_s))
    assert small.clock.bare is None
    assert not any(collecting)
    assert gc.isenabled()
