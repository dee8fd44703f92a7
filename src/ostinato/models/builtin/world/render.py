"""Draws any frame of a scene on a torus of 64x64 pixels.

Invariant: the state of frame t is a closed form of t, so a clip may start at any frame and two
overlapping clips of one scene agree to the bit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ostinato.models.builtin.world.backdrop import HEIGHT, WIDTH, backdrop
from ostinato.models.builtin.world.geometry import EXTENTS, coverage
from ostinato.models.builtin.world.scene import ObjectSpec, Scene, travel_bounds
from ostinato.models.builtin.world.vocabulary import PALETTE, Motion


def render(scene: Scene, num_frames: int, first_frame: int = 0) -> NDArray[np.uint8]:
    """Draw frames [first_frame, first_frame + num_frames) of a scene: uint8 [T,64,64,3], RGB."""
    frames = np.empty((num_frames, HEIGHT, WIDTH, 3), np.uint8)
    frames[:] = backdrop(scene.background)
    times = np.arange(first_frame, first_frame + num_frames, dtype=np.float64)
    for spec in scene.objects:
        _draw(frames, spec, track(spec, times))
    return frames


def track(spec: ObjectSpec, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centroid (x, y) of an object at frame times [T], in px: float64 [T,2]."""
    start, velocity = np.asarray(spec.position), np.asarray(spec.velocity)
    free = start + velocity * times[:, None]
    if spec.motion is not Motion.BOUNCING:
        return free % np.asarray((WIDTH, HEIGHT), np.float64)
    low, high = np.asarray(travel_bounds(spec.shape, spec.radius)).T
    # Unfolded, a reflected path is a straight line of period 2 * span.
    span = high - low
    return high - np.abs((free - low) % (2 * span) - span)


def _draw(frames: NDArray[np.uint8], spec: ObjectSpec, centers: NDArray[np.float64]) -> None:
    # The anchor is up to half a pixel off, and the soft edge adds another half.
    reach = math.ceil(max(EXTENTS[spec.shape]) * spec.radius) + 1
    window = np.arange(-reach, reach + 1)
    anchors = np.rint(centers).astype(np.int64)
    offsets = (anchors - centers)[:, :, None] + window
    dx, dy = offsets.astype(np.float32).transpose(1, 0, 2)
    alpha = coverage(spec.shape, spec.radius, dx[:, None, :], dy[:, :, None])[..., None]
    columns, rows = (anchors[:, axis, None] + window for axis in (0, 1))
    where = (
        np.arange(len(frames))[:, None, None],
        rows[:, :, None] % HEIGHT,
        columns[:, None, :] % WIDTH,
    )
    behind = frames[where].astype(np.float32)
    colour = np.asarray(PALETTE[spec.colour], np.float32)
    frames[where] = np.rint(behind + alpha * (colour - behind)).astype(np.uint8)
