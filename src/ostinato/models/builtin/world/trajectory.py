"""Names the motion of an object from the path of its centroid.

Invariant: a path is unwrapped across the borders first, so leaving on one side and entering on the
other is straight on, and only an object that stays within the frame can bounce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.models.builtin.world.backdrop import HEIGHT, WIDTH
from ostinato.models.builtin.world.vocabulary import Motion

# Speeds are displacements over this many frames, so that a wobbling outline does not count.
_LAG = 8
# Pixels per frame. The slowest object of the world moves at 0.6.
_STILL_SPEED = 0.2
_MOVING_SPEED = 0.3
# Speed across the direction of a straight motion, as a share; a bounce has at least 0.59.
_STRAIGHT_SHARE = 0.35
# Share of the travelled path that leads forward in a straight motion.
_FORWARD_SHARE = 0.8
_BORDER_SLACK = 2.0
_PACE_WINDOW = 24
_PACE_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """An unwrapped path: positions (x, y) [T,2] in px, velocities [T-lag,2] in px per frame."""

    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]

    @property
    def mean_speed(self) -> float:
        """Return the mean speed in px per frame."""
        return float(np.hypot(*self.velocities.T).mean())


def unwrap(centers: NDArray[np.float64], present: NDArray[np.bool_]) -> Trajectory | None:
    """Join centroids [T,2] into one path; None if the object is missing from most frames."""
    if present.mean() < 0.5:
        return None
    times = np.flatnonzero(present)
    size = np.array((WIDTH, HEIGHT), np.float64)
    steps = (np.diff(centers[times], axis=0) + size / 2) % size - size / 2
    path = np.concatenate([centers[times[:1]] % size, steps]).cumsum(0)
    frames = np.arange(len(centers))
    positions = np.stack([np.interp(frames, times, axis) for axis in path.T], axis=1)
    lag = min(_LAG, len(centers) - 1)
    return Trajectory(positions=positions, velocities=(positions[lag:] - positions[:-lag]) / lag)


def seen_motion(trajectory: Trajectory | None) -> Motion | None:
    """Return the motion that a path shows, None if it is none of the vocabulary."""
    if trajectory is None:
        return None
    pace = np.abs(trajectory.velocities).mean(0)
    main = int(pace.argmax())
    if pace[main] < _STILL_SPEED:
        return Motion.STILL
    if pace[main] < _MOVING_SPEED:
        return None
    if pace[1 - main] <= _STRAIGHT_SHARE * pace[main]:
        forward = float(trajectory.velocities[:, main].mean())
        if abs(forward) < _FORWARD_SHARE * pace[main]:
            return None
        straight = ((Motion.LEFT, Motion.RIGHT), (Motion.UP, Motion.DOWN))
        return straight[main][forward > 0]
    low, high = trajectory.positions.min(0), trajectory.positions.max(0)
    within = (low >= -_BORDER_SLACK) & (high <= np.array((WIDTH, HEIGHT)) + _BORDER_SLACK)
    return Motion.BOUNCING if within.all() else None


def keeps_pace(trajectory: Trajectory | None, motion: Motion | None) -> bool:
    """Return whether an object moves, or rests, as a motion asks during the whole clip."""
    if trajectory is None:
        return False
    if motion is None:
        return True
    speed = np.hypot(*trajectory.velocities.T)
    windows = np.array_split(speed, max(1, len(speed) // _PACE_WINDOW))
    paces = np.array([window.mean() for window in windows])
    right = paces < _MOVING_SPEED if motion is Motion.STILL else paces >= _MOVING_SPEED
    return bool(right.mean() >= _PACE_SHARE)
