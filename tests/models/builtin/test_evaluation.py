"""The world suite: it measures what the model made, and it can fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ostinato.errors import BadInput
from ostinato.models.builtin.evaluation import held_out_prompts, run_world_suite
from ostinato.models.builtin.world import (
    ParsedPrompt,
    Scene,
    is_held_out,
    parse_prompt,
    place_object,
    render,
)


@dataclass
class Clip:
    frames: np.ndarray


@dataclass
class Result:
    video: Clip


def scene(expected: ParsedPrompt, seed: int) -> Scene:
    assert expected.shape
    assert expected.colour
    assert expected.motion
    assert expected.background
    rng = np.random.default_rng(seed)
    placed = place_object(rng, expected.shape, expected.colour, expected.motion)
    return Scene(objects=(placed,), background=expected.background)


class Truth:
    """Renders what the prompt asks for: the best generator there can be."""

    def generate(self, prompt: str, **fields: object) -> Result:
        drawn = scene(parse_prompt(prompt), int(str(fields["seed"])))
        return Result(Clip(render(drawn, int(str(fields["num_frames"])))))


class Frozen(Truth):
    """Renders the first frame of the right scene for ever."""

    def generate(self, prompt: str, **fields: object) -> Result:
        frames = super().generate(prompt, **fields).video.frames
        return Result(Clip(np.repeat(frames[:1], len(frames), axis=0)))


def test_prompts_are_held_out_and_the_same_for_everyone() -> None:
    prompts = held_out_prompts(60)
    assert held_out_prompts(60) == prompts
    assert held_out_prompts(20) == prompts[:20]
    for prompt in prompts:
        expected = parse_prompt(prompt)
        assert expected.shape
        assert expected.colour
        assert expected.motion
        assert expected.background
        assert is_held_out(expected.shape, expected.colour, expected.motion, expected.background), (
            prompt
        )


def test_ground_truth_passes_with_full_marks() -> None:
    seen: list[tuple[int, int]] = []
    report = run_world_suite(
        Truth(), 12, threads=1, on_progress=lambda done, total: seen.append((done, total))
    )
    assert report.passed
    assert report.figures["all_correct"] == 1.0
    assert report.figures["presence_long"] == 1.0
    assert report.figures["background_drift_255"] < 1.0
    assert report.detail["wrong"] == []
    assert all(value > 0.9 for value in report.detail["long_presence"].values())
    assert len(report.detail["long_presence"]) == report.detail["long_prompts"]
    assert seen == [(i, 13) for i in range(1, 14)]


def test_a_model_that_does_not_move_fails() -> None:
    report = run_world_suite(Frozen(), 12, threads=1)
    assert not report.passed
    assert report.figures["motion"] < 0.5
    assert report.figures["color"] == 1.0


def test_a_suite_of_no_prompts_is_refused() -> None:
    with pytest.raises(BadInput, match="no prompts"):
        run_world_suite(Truth(), 0, threads=1)
