"""Measures a clip, drawn or generated, against what a prompt asks for.

Invariant: what is SEEN (background, colour, shape, motion) is judged blind; the prompt is only
compared with it afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import InvalidRequest
from ostinato.models.builtin.world.backdrop import HEIGHT, WIDTH, backdrop
from ostinato.models.builtin.world.observation import Observation, observe
from ostinato.models.builtin.world.prompt import ParsedPrompt
from ostinato.models.builtin.world.scene import FPS
from ostinato.models.builtin.world.silhouette import likeness_to_start, seen_shape
from ostinato.models.builtin.world.trajectory import keeps_pace, seen_motion, unwrap
from ostinato.models.builtin.world.vocabulary import Background, Colour, Motion, Shape

# Frames of a chunk of the built-in model; windows of the measures over time are as long.
CHUNK_FRAMES = 12
# More than this share of an object's area elsewhere in the frame is a second object.
_MOST_CLUTTER = 0.5
# One 8-bit level on one pixel in a hundred: keeps the flicker ratio of a resting clip defined.
_LEAST_DIFFERENCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What a clip shows, and whether that is what was asked; an attribute not asked for is right.

    - `presence`: share of frames with an object of the right colour and 0.5 to 2 times the median
      area; `subject_preservation`: the same, each frame weighted with the likeness of its outline
      to the first chunk's, 0 to 1 (0.95 or more when drawn).
    - `area_ratio`: area in the last chunk over that in the first.
    - `background_drift_255`: mean absolute difference from the ideal background in the worst chunk.
    - `camera_drift_percent`: largest shift of the pattern, % of the width per 10 s; 0 without.
    - `border_flicker`: frame difference across chunk borders over that within chunks; 1: seamless.
    - `clutter`: area elsewhere that looks like objects, over the object's.
    - `mean_speed`: px per frame; `dynamic`: moves, or rests, as asked during the whole clip.
    """

    background: Background | None
    colour: Colour | None
    shape: Shape | None
    motion: Motion | None
    background_ok: bool
    colour_ok: bool
    shape_ok: bool
    motion_ok: bool
    presence: float
    subject_preservation: float
    area_ratio: float
    background_drift_255: float
    camera_drift_percent: float
    border_flicker: float
    clutter: float
    mean_speed: float
    dynamic: bool

    @property
    def all_correct(self) -> bool:
        """Return whether all four attributes are right and the object is alone."""
        attributes = (self.background_ok, self.colour_ok, self.shape_ok, self.motion_ok)
        return all(attributes) and self.clutter <= _MOST_CLUTTER


def analyse(frames: NDArray[np.uint8], expected: ParsedPrompt) -> Analysis:
    """Measure a clip of at least 12 frames, uint8 [T,64,64,3] RGB at 16 fps, against a prompt.

    Raises InvalidRequest for another shape or dtype.
    """
    _validate(frames)
    seen = observe(frames)
    trajectory = unwrap(seen.centers, seen.present)
    shape, motion = seen_shape(seen), seen_motion(trajectory)
    likeness = likeness_to_start(seen.coverage, seen.offsets, CHUNK_FRAMES)
    median_area = float(np.median(seen.areas[seen.present])) if seen.present.any() else 0.0
    is_present = _is_present(seen, expected.colour or seen.colour, median_area)
    return Analysis(
        background=seen.background,
        colour=seen.colour,
        shape=shape,
        motion=motion,
        background_ok=expected.background in (None, seen.background),
        colour_ok=expected.colour in (None, seen.colour),
        shape_ok=expected.shape in (None, shape),
        motion_ok=expected.motion in (None, motion),
        presence=float(is_present.mean()),
        subject_preservation=float((is_present * likeness).mean()),
        area_ratio=_area_ratio(seen),
        background_drift_255=_background_drift(
            frames, seen.visible, expected.background or seen.nearest_background
        ),
        camera_drift_percent=_camera_drift(seen),
        border_flicker=border_flicker(frames),
        clutter=float(np.median(seen.clutter)) / max(median_area, 1.0),
        mean_speed=trajectory.mean_speed if trajectory else 0.0,
        dynamic=keeps_pace(trajectory, expected.motion),
    )


def border_flicker(frames: NDArray[np.uint8], chunk_frames: int = CHUNK_FRAMES) -> float:
    """Return the mean frame difference across chunk borders over that within chunks."""
    signed = frames.astype(np.int16)
    difference = np.abs(np.diff(signed, axis=0)).mean((1, 2, 3))
    border = np.arange(1, len(frames)) % chunk_frames == 0
    if not border.any() or border.all():
        return 1.0
    across, within = difference[border].mean(), difference[~border].mean()
    return float((across + _LEAST_DIFFERENCE) / (within + _LEAST_DIFFERENCE))


def _validate(frames: NDArray[np.uint8]) -> None:
    fits = frames.ndim == 4 and frames.shape[1:] == (HEIGHT, WIDTH, 3)
    if not fits or len(frames) < CHUNK_FRAMES or frames.dtype != np.uint8:
        raise InvalidRequest(
            f"cannot analyse frames of shape {frames.shape!r}, dtype {str(frames.dtype)!r}: "
            f"expected uint8 [T,{HEIGHT},{WIDTH},3] with T >= {CHUNK_FRAMES}"
        )


def _is_present(seen: Observation, colour: Colour | None, median_area: float) -> NDArray[np.bool_]:
    right_colour = np.array([each is not None and each is colour for each in seen.colours])
    right_area = (seen.areas >= 0.5 * median_area) & (seen.areas <= 2.0 * median_area)
    return seen.present & right_colour & right_area


def _area_ratio(seen: Observation) -> float:
    areas = np.where(seen.present, seen.areas, 0.0)
    first, last = (float(np.median(part)) for part in (areas[:CHUNK_FRAMES], areas[-CHUNK_FRAMES:]))
    return last / first if first else 0.0


def _chunks(values: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    return np.array_split(values, max(1, len(values) // CHUNK_FRAMES))


def _background_drift(
    frames: NDArray[np.uint8], visible: NDArray[np.bool_], background: Background
) -> float:
    difference = np.abs(frames.astype(np.float32) - backdrop(background))
    total = np.einsum("thwc,thw->t", difference, visible.astype(np.float32))
    per_frame = total / np.maximum(3 * visible.sum((1, 2)), 1)
    return max(float(chunk.mean()) for chunk in _chunks(per_frame))


def _camera_drift(seen: Observation) -> float:
    if not seen.registration.seen:
        return 0.0
    places = np.array([chunk.mean(0) for chunk in _chunks(seen.registration.shift)])
    farthest = float(np.hypot(*(places - places[0]).T).max())
    seconds = max(len(seen.areas) - CHUNK_FRAMES, CHUNK_FRAMES) / FPS
    return 100 * farthest / WIDTH * 10 / seconds
