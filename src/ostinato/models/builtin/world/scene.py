"""Describes a scene, and samples scenes from the training or the held-out split.

Invariant: a scene is a complete description (any frame of it can be drawn), and a combination of
attributes belongs to exactly one split, decided by a hash of its names that never changes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from ostinato.errors import InvalidRequest
from ostinato.models.builtin.world.backdrop import HEIGHT, WIDTH
from ostinato.models.builtin.world.geometry import EXTENTS
from ostinato.models.builtin.world.vocabulary import Background, Colour, Motion, Shape

_T = TypeVar("_T")

FPS = 16
RADIUS_RANGE = (9.0, 12.0)
# Pixels per frame: of a straight motion, and of each axis of a bounce.
SPEED_RANGE = (0.6, 1.4)
BOUNCE_SPEED_RANGE = (0.65, 1.1)

# Share of the combinations that training never sees, and pairs it never sees in any combination.
HELD_OUT_SHARE = 0.12
HELD_OUT_PAIRS = frozenset(
    {
        (Shape.TRIANGLE, Colour.CYAN),
        (Shape.RING, Colour.ORANGE),
        (Shape.SQUARE, Colour.PINK),
    }
)


class Split(StrEnum):
    """Which combinations of attributes a scene is drawn from."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSpec:
    """One object at frame 0: centroid (x, y) in px and velocity (x, y) in px per frame."""

    shape: Shape
    colour: Colour
    motion: Motion
    radius: float
    position: tuple[float, float]
    velocity: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One clip: objects drawn first to last over a background."""

    objects: tuple[ObjectSpec, ...]
    background: Background


def is_held_out(shape: Shape, colour: Colour, motion: Motion, background: Background) -> bool:
    """Return whether training never sees this combination."""
    if (shape, colour) in HELD_OUT_PAIRS:
        return True
    key = "/".join((shape.value, colour.value, motion.value, background.value))
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def sample_scene(
    rng: np.random.Generator, *, split: Split = Split.TRAIN, num_objects: int = 1
) -> Scene:
    """Draw a scene whose every object, with the background, belongs to the split.

    Two objects differ in shape and in colour. Raises InvalidRequest unless num_objects is 1 or 2.
    """
    if num_objects not in (1, 2):
        raise InvalidRequest(f"num_objects={num_objects!r}: a scene has 1 or 2 objects")
    while True:
        background = _pick(rng, tuple(Background))
        objects = [_sample_object(rng) for _ in range(num_objects)]
        held_out = [is_held_out(o.shape, o.colour, o.motion, background) for o in objects]
        distinct = (
            len({o.shape for o in objects}) == len({o.colour for o in objects}) == num_objects
        )
        if distinct and all(held is (split is Split.HELD_OUT) for held in held_out):
            return Scene(objects=tuple(objects), background=background)


def _sample_object(rng: np.random.Generator) -> ObjectSpec:
    shape, colour = _pick(rng, tuple(Shape)), _pick(rng, tuple(Colour))
    return place_object(rng, shape, colour, _pick(rng, tuple(Motion)))


def place_object(
    rng: np.random.Generator, shape: Shape, colour: Colour, motion: Motion
) -> ObjectSpec:
    """Draw size, position and velocity of an object with the given attributes."""
    radius = float(rng.uniform(*RADIUS_RANGE))
    bounds_x, bounds_y = travel_bounds(shape, radius)
    # A straight motion starts anywhere along its way; across it the whole object is in sight.
    if motion in (Motion.LEFT, Motion.RIGHT):
        bounds_x = (0.0, float(WIDTH))
    elif motion in (Motion.UP, Motion.DOWN):
        bounds_y = (0.0, float(HEIGHT))
    position = (float(rng.uniform(*bounds_x)), float(rng.uniform(*bounds_y)))
    velocity = _velocity(rng, motion)
    return ObjectSpec(
        shape=shape,
        colour=colour,
        motion=motion,
        radius=radius,
        position=position,
        velocity=velocity,
    )


def travel_bounds(shape: Shape, radius: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the (low, high) x and y of the centroid for which a shape lies within the frame."""
    extent = EXTENTS[shape]
    # The centre of pixel i is at coordinate i, so the frame spans -0.5 .. size - 0.5.
    return (
        (extent.side * radius - 0.5, WIDTH - 0.5 - extent.side * radius),
        (extent.above * radius - 0.5, HEIGHT - 0.5 - extent.below * radius),
    )


def _velocity(rng: np.random.Generator, motion: Motion) -> tuple[float, float]:
    speed = float(rng.uniform(*SPEED_RANGE))
    match motion:
        case Motion.LEFT:
            return (-speed, 0.0)
        case Motion.RIGHT:
            return (speed, 0.0)
        case Motion.UP:
            return (0.0, -speed)
        case Motion.DOWN:
            return (0.0, speed)
        case Motion.STILL:
            return (0.0, 0.0)
        case Motion.BOUNCING:
            x, y = (
                math.copysign(rng.uniform(*BOUNCE_SPEED_RANGE), rng.random() - 0.5) for _ in "xy"
            )
            return (x, y)


def _pick(rng: np.random.Generator, choices: tuple[_T, ...]) -> _T:
    return choices[int(rng.integers(len(choices)))]
