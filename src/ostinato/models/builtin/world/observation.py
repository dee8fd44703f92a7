"""Looks at a clip without knowing what was asked: background, colour, place and size per frame.

Invariant: nothing here depends on a prompt. All measures survive soft edges and codec noise, since
coverage is the projection of a pixel on the line from background colour to object colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.models.builtin.world.backdrop import HEIGHT, WIDTH, backdrop
from ostinato.models.builtin.world.registration import Registration, register
from ostinato.models.builtin.world.vocabulary import (
    BACKGROUND_COLOUR,
    PALETTE,
    Background,
    Colour,
)

_T = TypeVar("_T")

# An attribute of a clip is what this share of its frames show.
MAJORITY = 0.6
# Object and soft edge lie within this many px of the centroid (reach 1.25 * 12, plus blur).
OBJECT_REACH = 18
# A pixel this far from the background (Euclidean, 0..255 per channel) belongs to something else:
# half the smallest object-to-background distance of the palette (103).
_FOREGROUND_DISTANCE = 51.0
# Farther than this from every background of the vocabulary, a frame shows none of them.
_BACKGROUND_DISTANCE = 35.0
_LEAST_AREA = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a clip of T frames shows.

    `background` is None where no background of the vocabulary is seen; `nearest_background` is the
    one that was subtracted. `colours` is None in frames without an object. `centers` (x, y) in px,
    `areas` in px; `coverage` [T,37,37] in [0,1] is a crop whose middle pixel lies at `offsets`
    (x, y) from the centre; `clutter` is the area outside the object's reach that looks like any
    object, in px; `visible` [T,64,64] marks the background pixels.
    """

    background: Background | None
    nearest_background: Background
    registration: Registration
    colour: Colour | None
    colours: tuple[Colour | None, ...]
    present: NDArray[np.bool_]
    centers: NDArray[np.float64]
    areas: NDArray[np.float64]
    coverage: NDArray[np.float32]
    offsets: NDArray[np.float64]
    clutter: NDArray[np.float64]
    visible: NDArray[np.bool_]


def observe(frames: NDArray[np.uint8]) -> Observation:
    """Measure uint8 frames [T,64,64,3]."""
    backgrounds = _seen_backgrounds(frames)
    nearest = _plurality([name for name, _ in backgrounds])
    assert nearest is not None
    difference = frames.astype(np.float32) - backdrop(nearest)
    foreground, scores = _colour_scores(frames, difference)
    colours = tuple(
        tuple(Colour)[best] if score >= _LEAST_AREA / 2 else None
        for best, score in zip(scores.argmax(1), scores.max(1), strict=True)
    )
    main_colour = _plurality([colour for colour in colours if colour]) or Colour.RED
    cover = _coverage(difference, nearest, main_colour)
    found = _locate(cover)
    present = (found.areas >= _LEAST_AREA) & np.array([colour is not None for colour in colours])
    visible = ~_near(found.centers) | ~present[:, None, None]
    registration = register(frames, visible, nearest)
    named = majority([name if near else None for name, near in backgrounds])
    return Observation(
        background=named if registration.seen else None,
        nearest_background=nearest,
        registration=registration,
        colour=majority(colours),
        colours=colours,
        present=present,
        centers=found.centers,
        areas=found.areas,
        coverage=found.coverage,
        offsets=found.offsets,
        clutter=(foreground & visible).sum((1, 2)).astype(np.float64),
        visible=visible,
    )


def majority(votes: Sequence[_T | None]) -> _T | None:
    """Return the value that at least MAJORITY of all votes name, None if there is none."""
    best = _plurality([vote for vote in votes if vote is not None])
    return best if best is not None and votes.count(best) >= MAJORITY * len(votes) else None


def _plurality(votes: Sequence[_T]) -> _T | None:
    return Counter(votes).most_common(1)[0][0] if votes else None


def _seen_backgrounds(frames: NDArray[np.uint8]) -> list[tuple[Background, bool]]:
    """Name the nearest background of each frame, and whether it is near enough to be it."""
    # Every second pixel: an even share of each phase of a pattern.
    pixels = frames[:, ::2, ::2].reshape(len(frames), -1, 3).astype(np.float32)
    middle = np.median(pixels, axis=1, keepdims=True)
    inlier = np.abs(pixels - middle).max(-1, keepdims=True) < _FOREGROUND_DISTANCE
    mean = (pixels * inlier).sum(1) / np.maximum(inlier.sum(1), 1)
    table = np.array(tuple(BACKGROUND_COLOUR.values()), np.float32)
    distance = np.linalg.norm(mean[:, None] - table, axis=-1)
    names = tuple(BACKGROUND_COLOUR)
    return [(names[int(row.argmin())], bool(row.min() < _BACKGROUND_DISTANCE)) for row in distance]


def _colour_scores(
    frames: NDArray[np.uint8], difference: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return what is nearer to an object colour than to the background, and votes [T,colours]."""
    table = np.array(tuple(PALETTE.values()), np.float32)
    distance = np.sqrt(_squared(difference))
    where = np.nonzero(distance > _FOREGROUND_DISTANCE)
    gap = np.linalg.norm(frames[where].astype(np.float32)[:, None] - table, axis=-1)
    nearest, gap = gap.argmin(1), gap.min(1)
    foreground = np.zeros(distance.shape, bool)
    foreground[where] = gap < distance[where]
    # Full votes come from the core of an object; mixed colours at its edge hardly count.
    votes = np.exp(-np.square(gap / 45.0)) * foreground[where]
    bins = where[0] * len(table) + nearest
    scores = np.zeros(len(frames) * len(table))
    np.add.at(scores, bins, votes)
    return foreground, scores.reshape(len(frames), len(table))


def _coverage(
    difference: NDArray[np.float32], background: Background, colour: Colour
) -> NDArray[np.float32]:
    """Return how much of each pixel has the colour, [T,64,64] in [0,1]."""
    axis = np.asarray(PALETTE[colour], np.float32) - backdrop(background)
    along = np.einsum("thwc,hwc->thw", difference, axis) / np.square(axis).sum(-1)
    across = _squared(difference) - np.square(along) * np.square(axis).sum(-1)
    # Symmetric about 1/2: noise near 0 and 1 goes, area stays.
    sharp = np.clip((along - 0.2) / 0.6, 0.0, 1.0)
    # Another colour than this one lies off the line by about half a colour distance.
    return sharp * (across < 70.0**2)


class _Located(NamedTuple):
    centers: NDArray[np.float64]
    areas: NDArray[np.float64]
    coverage: NDArray[np.float32]
    offsets: NDArray[np.float64]


def _squared(difference: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.einsum("thwc,thwc->thw", difference, difference)


def _locate(cover: NDArray[np.float32]) -> _Located:
    """Find the densest spot of each frame and measure what is there."""
    half = cover.reshape(len(cover), HEIGHT // 2, 2, WIDTH // 2, 2).mean((2, 4))
    y, x = np.mgrid[: HEIGHT // 2, : WIDTH // 2]
    disc = np.hypot(*(np.minimum(axis, len(axis) - axis) for axis in (x, y))) <= OBJECT_REACH // 2
    density = np.fft.irfft2(np.fft.rfft2(half) * np.fft.rfft2(disc.astype(np.float32)))
    top = density.reshape(len(cover), -1).argmax(1)
    centers = np.stack([top % (WIDTH // 2), top // (WIDTH // 2)], axis=1) * 2 + 0.5
    # The crop must hold the whole object before its centroid is exact: twice is enough.
    for _ in range(2):
        centers = _crop(cover, centers).centers
    return _crop(cover, centers)


def _crop(cover: NDArray[np.float32], centers: NDArray[np.float64]) -> _Located:
    """Cut a disc around the pixel nearest to each centre, and measure what is in it."""
    offset = np.arange(-OBJECT_REACH, OBJECT_REACH + 1)
    inside = np.hypot(offset[:, None], offset) <= OBJECT_REACH
    anchors = np.rint(centers).astype(np.int64)
    rows = (anchors[:, 1, None] + offset) % HEIGHT
    columns = (anchors[:, 0, None] + offset) % WIDTH
    frame = np.arange(len(cover))[:, None, None]
    crop = cover[frame, rows[:, :, None], columns[:, None, :]] * inside
    areas = crop.sum((1, 2)).astype(np.float64)
    moved = np.stack([crop.sum(1) @ offset, crop.sum(2) @ offset], axis=1)
    centers = anchors + moved / np.maximum(areas, 1e-6)[:, None]
    return _Located(centers, areas, crop, anchors - centers)


def _near(centers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the pixels within an object's reach of each centre: bool [T,64,64]."""
    dx = np.abs((np.arange(WIDTH) - centers[:, :1] + WIDTH / 2) % WIDTH - WIDTH / 2)
    dy = np.abs((np.arange(HEIGHT) - centers[:, 1:] + HEIGHT / 2) % HEIGHT - HEIGHT / 2)
    return np.square(dx)[:, None, :] + np.square(dy)[:, :, None] <= OBJECT_REACH**2
