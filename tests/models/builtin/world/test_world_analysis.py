"""The analysis is right on drawn clips and on soft ones, and catches each fault by its field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ostinato.errors import InvalidRequest
from ostinato.models.builtin.world import (
    Background,
    Colour,
    Motion,
    ParsedPrompt,
    Scene,
    Shape,
    Split,
    analyse,
    place_object,
    render,
    sample_scene,
)
from ostinato.models.builtin.world.analysis import border_flicker
from ostinato.models.builtin.world.backdrop import backdrop
from ostinato.models.builtin.world.observation import observe
from ostinato.models.builtin.world.render import track

Frames = NDArray[np.uint8]
ASKED = ParsedPrompt(
    shape=Shape.SQUARE,
    colour=Colour.RED,
    motion=Motion.RIGHT,
    background=Background.CHECKERED,
)


def scene_of(asked: ParsedPrompt, seed: int = 0) -> Scene:
    assert asked.shape
    assert asked.colour
    assert asked.motion
    assert asked.background
    spec = place_object(np.random.default_rng(seed), asked.shape, asked.colour, asked.motion)
    return Scene(objects=(spec,), background=asked.background)


def asked_of(scene: Scene) -> ParsedPrompt:
    spec = scene.objects[0]
    return ParsedPrompt(
        shape=spec.shape,
        colour=spec.colour,
        motion=spec.motion,
        background=scene.background,
    )


def degrade(frames: Frames, rng: np.random.Generator) -> Frames:
    """Mimic a generator: outlines wobble by up to 2 px, blur of sigma 0.8, noise of sigma 6."""
    count = len(frames)
    y, x = np.mgrid[:64, :64].astype(float)
    fields = np.zeros((2, count, 64, 64))
    for field in fields:
        for _ in range(3):
            (kx, ky), phase = rng.integers(-3, 4, 2), rng.uniform(0, 2 * np.pi)
            turn = (rng.uniform(-0.25, 0.25) * np.arange(count))[:, None, None]
            field += 2 / 3 * np.sin(2 * np.pi * (kx * x + ky * y) / 64 + phase + turn)
    rows, columns = (
        np.rint(axis + field).astype(int) % 64 for axis, field in zip((y, x), fields, strict=True)
    )
    picture = frames[np.arange(count)[:, None, None], rows, columns].astype(np.float32)
    kernel = np.exp(-0.5 * (np.arange(-3, 4) / 0.8) ** 2)
    for axis in (1, 2):
        shifted = (np.roll(picture, step, axis=axis) for step in range(-3, 4))
        picture = sum(w * each for w, each in zip(kernel / kernel.sum(), shifted, strict=True))
    noisy = picture + rng.normal(0, 6, frames.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def check_drawn(split: Split, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        scene = sample_scene(rng, split=split)
        frames = render(scene, int(rng.integers(72, 97)), int(rng.integers(0, 1000)))
        asked = asked_of(scene)
        seen = analyse(frames, asked)
        assert (seen.shape, seen.colour, seen.motion, seen.background) == (
            asked.shape,
            asked.colour,
            asked.motion,
            asked.background,
        ), (scene, seen)
        assert seen.all_correct
        assert seen.dynamic
        assert seen.presence == 1.0
        assert seen.subject_preservation > 0.95
        assert seen.area_ratio == pytest.approx(1.0, abs=0.05)
        assert seen.background_drift_255 == 0.0
        assert seen.camera_drift_percent == pytest.approx(0.0, abs=1e-6)
        assert seen.border_flicker == pytest.approx(1.0, abs=0.15)
        assert seen.clutter == 0.0
        speed = np.hypot(*scene.objects[0].velocity)
        assert seen.mean_speed == pytest.approx(speed, rel=0.2, abs=0.02)


def share_correct(split: Split, count: int, seed: int, num_frames: int) -> float:
    rng = np.random.default_rng(seed)
    right = 0
    for _ in range(count):
        scene = sample_scene(rng, split=split)
        seen = analyse(degrade(render(scene, num_frames), rng), asked_of(scene))
        right += seen.all_correct and seen.presence > 0.97 and seen.dynamic
    return right / count


@pytest.mark.parametrize("split", list(Split))
def test_drawn_clips_are_measured_right(split: Split) -> None:
    check_drawn(split, 30, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("split", list(Split))
def test_many_drawn_clips_are_measured_right(split: Split) -> None:
    check_drawn(split, 400, seed=1)


def test_soft_clips_are_measured_right() -> None:
    assert share_correct(Split.HELD_OUT, 20, seed=0, num_frames=36) >= 19 / 20


@pytest.mark.slow
@pytest.mark.parametrize("split", list(Split))
def test_many_soft_clips_are_measured_right(split: Split) -> None:
    assert share_correct(split, 300, seed=1, num_frames=72) >= 0.97


@pytest.mark.parametrize("motion", list(Motion))
def test_any_length(motion: Motion) -> None:
    asked = replace(ASKED, motion=motion)
    frames = render(scene_of(asked), 360)
    for num_frames in (12, 13, 30, 360):
        seen = analyse(frames[:num_frames], asked)
        assert seen.all_correct
        assert seen.presence == 1.0
        assert seen.dynamic


@pytest.mark.parametrize("motion", [Motion.LEFT, Motion.BOUNCING])
def test_ten_times_the_length(motion: Motion) -> None:
    asked = replace(ASKED, motion=motion)
    seen = analyse(render(scene_of(asked), 720), asked)
    assert seen.all_correct
    assert seen.dynamic


def test_centroids_are_exact_to_a_fifth_of_a_pixel() -> None:
    rng = np.random.default_rng(4)
    for _ in range(10):
        scene = sample_scene(rng)
        found = observe(render(scene, 40)).centers
        gap = (found - track(scene.objects[0], np.arange(40.0)) + 32) % 64 - 32
        assert np.abs(gap).max() < 0.2


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        *(("shape", shape) for shape in Shape if shape is not ASKED.shape),
        *(("colour", colour) for colour in Colour if colour is not ASKED.colour),
        *(("motion", motion) for motion in Motion if motion is not ASKED.motion),
        *(("background", name) for name in Background if name is not ASKED.background),
    ],
)
def test_one_wrong_attribute_is_caught_and_no_other(field: str, wrong: str) -> None:
    seen = analyse(render(scene_of(replace(ASKED, **{field: wrong})), 36), ASKED)
    names = ("shape", "colour", "motion", "background")
    assert [name for name in names if not getattr(seen, f"{name}_ok")] == [field]
    assert getattr(seen, field) == wrong
    assert not seen.all_correct
    assert (seen.presence == 0.0) == (field == "colour")
    if field == "background":
        assert seen.background_drift_255 > 10


def test_what_is_not_asked_for_is_right_and_the_rest_is_seen_blind() -> None:
    frames = render(scene_of(ASKED), 24)
    silent, asked = analyse(frames, ParsedPrompt()), analyse(frames, ASKED)
    assert silent.all_correct
    assert silent == asked
    other = ParsedPrompt(
        shape=Shape.RING, colour=Colour.PINK, motion=Motion.UP, background=Background.WHITE
    )
    wrong = analyse(frames, other)
    for name in ("shape", "colour", "motion", "background", "clutter", "mean_speed"):
        assert getattr(wrong, name) == getattr(asked, name)


def test_an_empty_clip_is_caught() -> None:
    seen = analyse(np.repeat(backdrop(Background.CHECKERED)[None], 24, axis=0), ASKED)
    assert seen.background_ok
    assert (seen.colour, seen.shape, seen.motion) == (None, None, None)
    assert not any((seen.colour_ok, seen.shape_ok, seen.motion_ok, seen.dynamic))
    assert seen.presence == 0.0


@pytest.mark.parametrize("level", [60, 200])
def test_a_clip_of_noise_shows_nothing(level: int) -> None:
    noise = np.random.default_rng(0).normal(level, 60, (24, 64, 64, 3))
    seen = analyse(np.clip(noise, 0, 255).astype(np.uint8), ASKED)
    assert not any((seen.background_ok, seen.all_correct))
    assert seen.shape is None


def test_a_frozen_clip_is_caught() -> None:
    frozen = np.repeat(render(scene_of(ASKED), 1), 48, axis=0)
    seen = analyse(frozen, ASKED)
    assert seen.motion is Motion.STILL
    assert not seen.motion_ok
    assert not seen.dynamic
    assert seen.mean_speed == 0.0


def test_a_clip_that_freezes_half_way_is_not_dynamic() -> None:
    frames = render(scene_of(ASKED), 96)
    frames[48:] = frames[48]
    assert not analyse(frames, ASKED).dynamic


def test_a_still_object_that_starts_to_move_is_caught() -> None:
    still, moving = replace(ASKED, motion=Motion.STILL), scene_of(ASKED)
    frames = np.concatenate([np.repeat(render(moving, 1), 48, axis=0), render(moving, 48)])
    seen = analyse(frames, still)
    assert not seen.motion_ok
    assert not seen.dynamic


def test_a_diagonal_that_wraps_is_no_bounce() -> None:
    spec = replace(scene_of(ASKED).objects[0], velocity=(0.8, 0.8))
    frames = render(Scene(objects=(spec,), background=Background.CHECKERED), 96)
    assert analyse(frames, ASKED).motion is None


def test_an_object_that_vanishes_is_caught() -> None:
    frames = render(scene_of(ASKED), 72)
    frames[36:] = backdrop(Background.CHECKERED)
    seen = analyse(frames, ASKED)
    assert seen.presence == pytest.approx(0.5)
    assert seen.subject_preservation == pytest.approx(0.5, abs=0.02)
    assert seen.area_ratio == 0.0
    assert not seen.all_correct


def test_an_object_that_changes_colour_or_size_is_caught() -> None:
    scene = scene_of(ASKED)
    small, large = replace(scene.objects[0], radius=7.0), replace(scene.objects[0], radius=12.0)
    blue = replace(scene.objects[0], colour=Colour.BLUE)
    parts = [render(replace(scene, objects=(spec,)), 36) for spec in (small, large, blue)]
    grows = analyse(np.concatenate(parts[:2]), ASKED)
    assert grows.area_ratio == pytest.approx((12 / 7) ** 2, rel=0.05)
    changes = analyse(np.concatenate(parts[1:]), ASKED)
    assert changes.presence == pytest.approx(0.5)
    assert not changes.colour_ok


def test_an_object_that_changes_shape_is_not_preserved() -> None:
    scene = scene_of(ASKED)
    ring = replace(scene.objects[0], shape=Shape.RING)
    parts = [render(scene, 36), render(replace(scene, objects=(ring,)), 36)]
    seen = analyse(np.concatenate(parts), ASKED)
    assert seen.presence == 1.0
    assert seen.subject_preservation < 0.85
    assert not seen.shape_ok


@pytest.mark.parametrize(
    "background", [Background.STRIPED, Background.CHECKERED, Background.DOTTED, Background.WAVY]
)
def test_a_drifting_camera_is_caught_and_measured(background: Background) -> None:
    asked = replace(ASKED, background=background)
    frames = render(scene_of(asked), 96)
    hidden = np.abs(frames.astype(int) - backdrop(background)).sum(-1, keepdims=True) > 0
    # One pixel to the right every eight frames: 2 px/s, 31.25 % of the width in 10 s.
    rolled = [np.roll(backdrop(background), frame // 8, axis=1) for frame in range(96)]
    seen = analyse(np.where(hidden, frames, np.stack(rolled)), asked)
    # Of stripes at 45 degrees only the shift across them shows.
    visible = np.sqrt(0.5) if background is Background.STRIPED else 1.0
    assert seen.camera_drift_percent == pytest.approx(31.25 * visible, rel=0.05)
    assert seen.background_drift_255 > 5
    assert seen.background_ok


def test_a_pattern_of_the_wrong_kind_or_none_is_no_background_of_the_world() -> None:
    frames = render(scene_of(ASKED), 24).astype(int)
    hidden = np.abs(frames - backdrop(Background.CHECKERED)).sum(-1, keepdims=True) > 0
    mean = backdrop(Background.CHECKERED).mean((0, 1))
    dots = backdrop(Background.DOTTED) - backdrop(Background.DOTTED).mean((0, 1))
    for behind in (np.broadcast_to(mean, (64, 64, 3)), mean + dots):
        seen = analyse(np.where(hidden, frames, np.rint(behind)).astype(np.uint8), ASKED)
        assert seen.background is None
        assert not seen.background_ok


def test_a_background_that_brightens_is_caught() -> None:
    frames = render(scene_of(ASKED), 72).astype(int)
    brighter = frames + (np.arange(72) // 4)[:, None, None, None]
    seen = analyse(np.clip(brighter, 0, 255).astype(np.uint8), ASKED)
    assert seen.background_drift_255 == pytest.approx(16, abs=1)


def test_a_second_object_is_caught() -> None:
    scene = scene_of(replace(ASKED, motion=Motion.STILL))
    spec = scene.objects[0]
    far = ((spec.position[0] + 32) % 64, (spec.position[1] + 32) % 64)
    for colour in (Colour.RED, Colour.CYAN):
        both = replace(scene, objects=(spec, replace(spec, colour=colour, position=far)))
        seen = analyse(render(both, 24), replace(ASKED, motion=Motion.STILL))
        assert seen.clutter > 0.7
        assert not seen.all_correct


def test_flicker_at_chunk_borders_is_measured() -> None:
    frames = render(scene_of(ASKED), 72)
    assert border_flicker(frames) == pytest.approx(1.0, abs=0.05)
    shifted = frames.astype(int) + ((np.arange(72) // 12) % 2 * 5)[:, None, None, None]
    assert border_flicker(np.clip(shifted, 0, 255).astype(np.uint8)) > 2
    assert border_flicker(np.repeat(frames[:1], 72, axis=0)) == 1.0


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((11, 64, 64, 3), np.uint8),
        np.zeros((12, 32, 64, 3), np.uint8),
        np.zeros((12, 64, 64, 3), np.float32),
        np.zeros((64, 64, 3), np.uint8),
    ],
)
def test_other_shapes_are_refused(frames: Frames) -> None:
    with pytest.raises(InvalidRequest, match="expected uint8"):
        analyse(frames, ASKED)
