"""The world suite: held-out prompts through the served model, measured exactly.

Every clip goes through the engine as a user's would. One-object prompts whose combination of
attributes was never trained on, in the words and word orders people type; what is seen is judged
blind. A second, smaller set is rolled out 7.5 times longer to see drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import numpy as np

from ostinato.errors import BadInput
from ostinato.models.builtin.world import (
    Analysis,
    ParsedPrompt,
    Split,
    analyse,
    caption,
    parse_prompt,
    sample_scene,
)
from ostinato.report import Comparison, Report, Target, describe_environment, wilson_interval

CLIP_FRAMES = 96
LONG_FRAMES = 720
# The suite's own seed: other prompts than training's validation draws, the same for everyone.
SUITE_SEED = 20_261
TARGETS: tuple[tuple[str, Target], ...] = (
    ("all_correct", (Comparison.AT_LEAST, 0.85)),
    ("color", (Comparison.AT_LEAST, 0.97)),
    ("presence_long", (Comparison.AT_LEAST, 0.98)),
    ("background_drift_255", (Comparison.AT_MOST, 5.0)),
)


class Clip(Protocol):
    """A generated clip: frames uint8 [T, 64, 64, 3]."""

    @property
    def frames(self) -> np.ndarray: ...


class Result(Protocol):
    """What generating returns."""

    @property
    def video(self) -> Clip: ...


class Generator(Protocol):
    """The served model."""

    def generate(self, prompt: str, **fields: object) -> Result: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One prompt and what its clip showed."""

    prompt: str
    seed: int
    expected: ParsedPrompt
    analysis: Analysis


def held_out_prompts(count: int) -> tuple[str, ...]:
    """Return the suite's first `count` prompts; raises BadInput for fewer than one."""
    if count < 1:
        raise BadInput(f"prompts is {count!r}; a suite of no prompts measures nothing")
    rng = np.random.default_rng(SUITE_SEED)
    return tuple(caption(sample_scene(rng, split=Split.HELD_OUT), rng) for _ in range(count))


def run_world_suite(
    model: Generator,
    num_prompts: int,
    threads: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    fields: Mapping[str, object] | None = None,
) -> Report:
    """Generate and measure; `fields` are passed to every request (sampler, steps...).

    on_progress(done, total) is called after each clip. Raises BadInput for no prompts.
    """
    prompts = held_out_prompts(num_prompts)
    long_prompts = prompts[: max(1, num_prompts // 10)]
    total = len(prompts) + len(long_prompts)
    rows: list[Row] = []

    def measure(index: int, prompt: str, num_frames: int) -> Row:
        chosen = {**(fields or {}), "num_frames": num_frames, "seed": SUITE_SEED + index}
        frames = model.generate(prompt, **chosen).video.frames
        expected = parse_prompt(prompt)
        row = Row(
            prompt=prompt,
            seed=SUITE_SEED + index,
            expected=expected,
            analysis=analyse(frames, expected),
        )
        rows.append(row)
        on_progress(len(rows), total)
        return row

    short = [measure(i, prompt, CLIP_FRAMES) for i, prompt in enumerate(prompts)]
    long = [measure(i, prompt, LONG_FRAMES) for i, prompt in enumerate(long_prompts)]
    return Report(
        name="world",
        figures=_figures(short, long),
        targets=dict(TARGETS),
        environment=describe_environment(threads),
        detail=_detail(short, long),
    )


def _figures(short: Sequence[Row], long: Sequence[Row]) -> dict[str, float]:
    clips, rollouts = [row.analysis for row in short], [row.analysis for row in long]
    return {
        "prompts": float(len(clips)),
        "all_correct": fmean(clip.all_correct for clip in clips),
        "background": fmean(clip.background_ok for clip in clips),
        "color": fmean(clip.colour_ok for clip in clips),
        "shape": fmean(clip.shape_ok for clip in clips),
        "motion": fmean(clip.motion_ok for clip in clips),
        # Ground truth is dynamic as prompted in every clip, so the share is the ratio.
        "dynamic_degree_ratio": fmean(clip.dynamic for clip in clips),
        "border_flicker": fmean(clip.border_flicker for clip in clips),
        "presence_long": fmean(clip.presence for clip in rollouts),
        "subject_preservation": fmean(clip.subject_preservation for clip in rollouts),
        "background_drift_255": fmean(clip.background_drift_255 for clip in rollouts),
        "camera_drift_percent": fmean(clip.camera_drift_percent for clip in rollouts),
    }


def _detail(short: Sequence[Row], long: Sequence[Row]) -> dict[str, object]:
    checks = {
        "all_correct": [row.analysis.all_correct for row in short],
        "background": [row.analysis.background_ok for row in short],
        "color": [row.analysis.colour_ok for row in short],
        "shape": [row.analysis.shape_ok for row in short],
        "motion": [row.analysis.motion_ok for row in short],
    }
    return {
        "clip_frames": CLIP_FRAMES,
        "long_frames": LONG_FRAMES,
        "long_prompts": len(long),
        "long_all_correct": fmean(row.analysis.all_correct for row in long),
        # One clip that loses its object weighs more than all small gaps together: say which.
        "long_presence": {row.prompt: round(row.analysis.presence, 4) for row in long},
        "interval_95": {k: wilson_interval(sum(v), len(v)) for k, v in checks.items()},
        "correct_by_shape": _share_by(short, "shape"),
        "correct_by_motion": _share_by(short, "motion"),
        "correct_by_background": _share_by(short, "background"),
        "wrong": [_describe(row) for row in short if not row.analysis.all_correct],
    }


def _share_by(rows: Sequence[Row], attribute: str) -> dict[str, float]:
    groups: dict[str, list[bool]] = {}
    for row in rows:
        key = str(getattr(row.expected, attribute))
        groups.setdefault(key, []).append(row.analysis.all_correct)
    return {key: fmean(values) for key, values in sorted(groups.items())}


def _describe(row: Row) -> dict[str, object]:
    seen = row.analysis
    return {
        "prompt": row.prompt,
        "seed": row.seed,
        "seen": [str(v) for v in (seen.colour, seen.shape, seen.motion, seen.background)],
        "clutter": round(seen.clutter, 2),
    }
