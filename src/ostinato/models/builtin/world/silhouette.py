"""Names the shape of an object from its coverage.

Invariant: size is taken from the area and place from the centroid, so a shape is judged by its
outline alone, at any sub-pixel position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.models.builtin.world.geometry import UNIT_AREA, coverage
from ostinato.models.builtin.world.observation import OBJECT_REACH, Observation, majority
from ostinato.models.builtin.world.vocabulary import Shape

# Frames that vote: evenly spaced, enough for a stable share.
_MOST_VOTES = 48
# The best template must overlap this much (intersection over union) to be a shape at all. Measured:
# outlines that wobble by 2 px reach 0.73 to 0.91; half discs, ellipses of 2:1, crescents and
# triangles on their tip stay below 0.70.
_LEAST_OVERLAP = 0.72
_SCALES = (0.93, 1.0, 1.07)


def seen_shape(observation: Observation) -> Shape | None:
    """Return the shape that a majority of the frames show, None if there is none."""
    count = len(observation.areas)
    sampled = np.unique(np.linspace(0, count - 1, min(count, _MOST_VOTES)).round().astype(int))
    overlaps = shape_overlaps(
        observation.coverage[sampled], observation.offsets[sampled], observation.areas[sampled]
    )
    votes = [
        tuple(Shape)[int(row.argmax())] if row.max() >= _LEAST_OVERLAP and present else None
        for row, present in zip(overlaps, observation.present[sampled], strict=True)
    ]
    return majority(votes)


def shape_overlaps(
    windows: NDArray[np.float32], offsets: NDArray[np.float64], areas: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return the overlap (IoU) of coverage [T,37,37] with each shape of equal area: [T,shapes]."""
    reach = np.arange(-OBJECT_REACH, OBJECT_REACH + 1)
    anchored = (reach + offsets[:, :, None]).astype(np.float32)
    dx, dy = anchored[:, 0, None, :], anchored[:, 1, :, None]
    best = np.zeros((len(windows), len(Shape)), np.float32)
    for column, shape in enumerate(Shape):
        radius = np.sqrt(areas / UNIT_AREA[shape]).astype(np.float32)[:, None, None]
        for scale in _SCALES:
            template = coverage(shape, radius * np.float32(scale), dx, dy)
            shared = np.minimum(windows, template).sum((1, 2))
            union = np.maximum(np.maximum(windows, template).sum((1, 2)), 1e-6)
            best[:, column] = np.maximum(best[:, column], shared / union)
    return best


def likeness_to_start(
    windows: NDArray[np.float32], offsets: NDArray[np.float64], num_reference: int
) -> NDArray[np.float32]:
    """Return how well each outline [T,37,37] overlaps that of the first frames, [T] in [0,1].

    1 is as alike as the first frames are to their own mean.
    """
    centred = _centred(windows, offsets)
    reference = centred[:num_reference].mean(0)
    shared = np.minimum(centred, reference).sum((1, 2))
    overlap = shared / np.maximum(np.maximum(centred, reference).sum((1, 2)), 1e-6)
    return np.minimum(overlap / max(float(overlap[:num_reference].mean()), 1e-6), 1.0)


def _centred(windows: NDArray[np.float32], offsets: NDArray[np.float64]) -> NDArray[np.float32]:
    """Shift each crop by up to a pixel, linearly, so that its centroid is its middle pixel."""
    for axis, shift in ((2, offsets[:, 0]), (1, offsets[:, 1])):
        # The centroid lies at -shift from the middle pixel: blend with the neighbour behind it.
        amount = np.clip(np.abs(shift), 0, 1).astype(np.float32)[:, None, None]
        back, ahead = np.roll(windows, 1, axis=axis), np.roll(windows, -1, axis=axis)
        neighbour = np.where((shift > 0)[:, None, None], back, ahead)
        windows = ((1 - amount) * windows + amount * neighbour).astype(np.float32)
    return windows
