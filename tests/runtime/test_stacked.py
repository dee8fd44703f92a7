"""The batched interleave gate: requests that share forwards give the same bytes as each alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ostinato.api import Engine
from ostinato.backend.batch_rules import NEVER, BatchRules, Kernels, Trials
from ostinato.errors import BadInput
from ostinato.models.builtin.card import open_builtin
from ostinato.models.registry import open_model
from ostinato.request import Request
from ostinato.runtime import Output, Stacking
from support.turns import RandomTurns

STEPS, SCALES = (2, 4, 3), (2.0, 1.0, 4.0)
PROMPTS = ("a red circle bouncing on navy", "blue ring", "a green square moving left on white")


def requests(model: str, count: int, **size: int) -> list[Request]:
    """Mixed prompts, timesteps and guidance; equal shapes."""
    return [
        Request.build(
            model=model,
            task="text_to_video",
            prompt=PROMPTS[i % len(PROMPTS)],
            seed=i,
            num_inference_steps=STEPS[i % len(STEPS)],
            guidance_scale=SCALES[i % len(SCALES)],
            outputs=("video", "latents"),
            **size,
        )
        for i in range(count)
    ]


def equal(one: Output, other: Output) -> bool:
    return torch.equal(one.latents, other.latents) and bool(
        (one.video.frames == other.video.frames).all()
    )


def alone(source: object, asked: Sequence[Request]) -> list[Output]:
    with Engine(max_batch=1) as engine:
        engine.add(source)
        return [engine.submit(request).result() for request in asked]


def test_the_branches_of_one_request_share_its_forward(
    tiny_wan_folder: Callable[[str], Path],
) -> None:
    source = open_model(tiny_wan_folder("UniPCMultistepScheduler"))
    size = {"height": 64, "width": 64, "num_frames": 1}
    guided, plain = (
        replace(requests(source.card.model_id, 1, **size)[0], guidance_scale=scale)
        for scale in (4.0, 1.0)
    )
    expected = alone(source, [guided, plain])
    assert [output.provenance.stacked_steps for output in expected] == [0, 0]
    with Engine(max_batch=4, stacking=Stacking.ALWAYS) as engine:
        engine.add(source)
        found = [engine.submit(asked).result() for asked in (guided, plain)]
    assert all(map(equal, expected, found))
    loading = 1  # before its weights are there, nobody can say what stacks
    assert found[0].provenance.stacked_steps == guided.num_inference_steps - loading > 0
    assert found[1].provenance.stacked_steps == 0, "it has one call a step"


@pytest.mark.parametrize("count", [2, 5, 16])
def test_builtin_stacked_equals_alone(tiny_builtin_folder: Path, count: int) -> None:
    source = open_builtin(tiny_builtin_folder)
    asked = requests("builtin", count, num_frames=18)
    expected = alone(source, asked)
    with Engine(RandomTurns(count), max_batch=16, stacking=Stacking.ALWAYS) as engine:
        engine.add(source)
        outputs = engine.run(asked)
    assert all(map(equal, outputs, expected))
    assert sum(output.provenance.stacked_steps for output in outputs) >= 2
    assert all(output.provenance.stacked_steps == 0 for output in expected)


@pytest.mark.parametrize("count", [2, 5, 16])
def test_wan_stacked_equals_alone(tiny_wan_folder: Callable[[str], Path], count: int) -> None:
    source = open_model(tiny_wan_folder("UniPCMultistepScheduler"))
    asked = requests(source.card.model_id, count, num_frames=1, height=64, width=64)
    expected = alone(source, asked)
    with Engine(RandomTurns(count), max_batch=16, stacking=Stacking.ALWAYS) as engine:
        engine.add(source)
        outputs = engine.run(asked)
    assert all(map(equal, outputs, expected))
    assert sum(output.provenance.stacked_steps for output in outputs) >= 2


def test_different_shapes_are_not_stacked(tiny_builtin_folder: Path) -> None:
    asked = requests("builtin", 1, num_frames=24)
    with Engine(max_batch=4, stacking=Stacking.ALWAYS) as engine:
        engine.add(open_builtin(tiny_builtin_folder))
        output = engine.run(asked)[0]
    assert output.provenance.stacked_steps == 0


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(BadInput, match="max_batch is 0"):
        Engine(max_batch=0)


def test_rules_that_forbid_stacks_are_followed_and_told(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the probe takes is charged to nobody."""
    source, asked = open_builtin(tiny_builtin_folder), requests("builtin", 3, num_frames=12)
    expected = alone(source, asked)

    def forbid() -> BatchRules:
        time.sleep(1.5)
        return BatchRules(
            linear_rows=NEVER,
            activation_multiple=NEVER,
            attention=False,
            norms=False,
        )

    monkeypatch.setattr("ostinato.runtime.turns.probe_batch_rules", forbid)
    with Engine(max_batch=4, stacking=Stacking.ALWAYS) as engine:
        engine.add(source)
        outputs = engine.run(asked)
    assert all(map(equal, outputs, expected))
    assert [output.provenance.stacked_steps for output in outputs] == [0, 0, 0]
    assert sum(output.provenance.device_s for output in outputs) < 1.5


def test_shapes_whose_trial_differs_are_not_stacked_and_the_trial_is_charged_to_nobody(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, asked = open_builtin(tiny_builtin_folder), requests("builtin", 2, num_frames=12)
    expected = alone(source, asked)

    def rms_norm(sample: torch.Tensor, normalized_shape: tuple[int, ...]) -> torch.Tensor:
        time.sleep(0.4)
        return sample * (1 + 2e-7) if len(sample) == 3 else sample

    trials = Trials(replace(Kernels(), rms_norm=rms_norm))
    rules = BatchRules(
        linear_rows=1, activation_multiple=1, attention=True, norms=True, trials=trials
    )
    monkeypatch.setattr("ostinato.runtime.turns.probe_batch_rules", lambda: rules)
    with Engine(max_batch=4, stacking=Stacking.ALWAYS) as engine:
        engine.add(source)
        outputs = engine.run(asked)
    assert all(map(equal, outputs, expected))
    assert [output.provenance.stacked_steps for output in outputs] == [0, 0]
    assert trials.spent_s > 1.5
    assert sum(output.provenance.device_s for output in outputs) < trials.spent_s
