"""Rendering: closed-form states, the torus, exact areas, two objects."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.models.builtin.world import (
    Background,
    Colour,
    Motion,
    ObjectSpec,
    Scene,
    Shape,
    place_object,
    render,
    sample_scene,
)
from ostinato.models.builtin.world.backdrop import backdrop
from ostinato.models.builtin.world.geometry import EXTENTS, UNIT_AREA
from ostinato.models.builtin.world.render import track
from ostinato.models.builtin.world.vocabulary import PALETTE


def spec_at(shape: Shape, position: tuple[float, float], radius: float = 10.0) -> ObjectSpec:
    return ObjectSpec(
        shape=shape,
        colour=Colour.CYAN,
        motion=Motion.STILL,
        radius=radius,
        position=position,
        velocity=(0.0, 0.0),
    )


def drawn_coverage(spec: ObjectSpec) -> np.ndarray:
    """Return the share of each pixel that the object covers, recovered from the picture."""
    frame = render(Scene(objects=(spec,), background=Background.BLACK), 1)[0].astype(float)
    base = backdrop(Background.BLACK).astype(float)
    return (frame - base).sum(-1) / (np.array(PALETTE[spec.colour]) - base).sum(-1)


@pytest.mark.parametrize("seed", range(6))
def test_a_clip_may_start_at_any_frame(seed: int) -> None:
    scene = sample_scene(np.random.default_rng(seed), num_objects=1 + seed % 2)
    whole = render(scene, 90)
    assert whole.dtype == np.uint8
    assert whole.shape == (90, 64, 64, 3)
    assert np.array_equal(whole[37:], render(scene, 53, first_frame=37))


@pytest.mark.parametrize("shape", list(Shape))
def test_area_and_centroid_are_exact(shape: Shape) -> None:
    cover = drawn_coverage(spec_at(shape, (30.3, 33.7)))
    y, x = np.mgrid[:64, :64]
    assert cover.sum() == pytest.approx(UNIT_AREA[shape] * 100, rel=0.02)
    assert (cover * x).sum() / cover.sum() == pytest.approx(30.3, abs=0.1)
    assert (cover * y).sum() / cover.sum() == pytest.approx(33.7, abs=0.1)


@pytest.mark.parametrize("shape", list(Shape))
def test_the_torus_wraps(shape: Shape) -> None:
    inside = drawn_coverage(spec_at(shape, (32.25, 32.5)))
    across = drawn_coverage(spec_at(shape, (0.25, 63.5)))
    assert np.allclose(np.roll(inside, (31, -32), axis=(0, 1)), across, atol=1e-6)


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize("radius", [9.0, 12.0])
def test_nothing_is_cut_off(shape: Shape, radius: float) -> None:
    cover = drawn_coverage(spec_at(shape, (31.5, 31.5), radius)) > 0.5
    rows, columns = np.flatnonzero(cover.any(1)), np.flatnonzero(cover.any(0))
    extent = EXTENTS[shape]
    assert np.ptp(columns) + 1 == pytest.approx(2 * extent.side * radius, abs=2.5)
    assert np.ptp(rows) + 1 == pytest.approx((extent.above + extent.below) * radius, abs=2.5)


def test_straight_motions_wrap_and_go_the_right_way() -> None:
    rng = np.random.default_rng(0)
    times = np.arange(720.0)
    for motion, axis, sign in (
        (Motion.LEFT, 0, -1),
        (Motion.RIGHT, 0, 1),
        (Motion.UP, 1, -1),
        (Motion.DOWN, 1, 1),
    ):
        path = track(place_object(rng, Shape.CIRCLE, Colour.RED, motion), times)
        steps = (np.diff(path, axis=0) + 32) % 64 - 32
        assert (np.sign(steps[:, axis]) == sign).all()
        assert np.ptp(path[:, 1 - axis]) == 0
        assert path.min() >= 0
        assert path.max() < 64


@pytest.mark.parametrize("shape", list(Shape))
def test_a_bouncing_object_never_leaves_and_keeps_its_speed(shape: Shape) -> None:
    rng = np.random.default_rng(1)
    spec = place_object(rng, shape, Colour.RED, Motion.BOUNCING)
    path = track(spec, np.arange(3000.0))
    extent = EXTENTS[shape]
    for axis, before, after in ((0, extent.side, extent.side), (1, extent.above, extent.below)):
        assert path[:, axis].min() - before * spec.radius >= -0.5 - 1e-6
        assert path[:, axis].max() + after * spec.radius <= 63.5 + 1e-6
        steps = np.abs(np.diff(path[:, axis]))
        assert np.median(steps) == pytest.approx(abs(spec.velocity[axis]))
        assert steps.max() <= abs(spec.velocity[axis]) + 1e-6
    assert np.allclose(path[0], spec.position)


def test_the_second_object_is_drawn_over_the_first() -> None:
    below, above = spec_at(Shape.SQUARE, (30, 30)), spec_at(Shape.CIRCLE, (34, 30), 9.0)
    above = ObjectSpec(
        shape=above.shape,
        colour=Colour.RED,
        motion=Motion.STILL,
        radius=9.0,
        position=above.position,
        velocity=(0.0, 0.0),
    )
    frame = render(Scene(objects=(below, above), background=Background.WAVY), 1)[0]
    assert tuple(frame[30, 34]) == PALETTE[Colour.RED]
    assert tuple(frame[30, 23]) == PALETTE[Colour.CYAN]
    assert np.array_equal(frame[50:], backdrop(Background.WAVY)[50:])
