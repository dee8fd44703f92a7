"""Video: the value that a request delivers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import BadInput, InvalidOutput
from ostinato.media._destination import check_destination, replacing
from ostinato.media._encode import encode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """Frames uint8 [T, H, W, 3] and how many of them play in a second.

    Raises BadInput when the frames have another shape or dtype or fps is not a positive number.
    """

    frames: NDArray[np.uint8]
    fps: float

    def __post_init__(self) -> None:
        shape, dtype = self.frames.shape, self.frames.dtype
        if len(shape) != 4 or shape[3] != 3 or min(shape[1:3]) < 1 or dtype != np.uint8:
            raise BadInput(f"frames are {dtype} {list(shape)}; expected uint8 [T, H, W, 3]")
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise BadInput(f"fps is {self.fps!r}; expected a positive number")

    @property
    def duration_s(self) -> float:
        """How long the clip plays."""
        return len(self.frames) / self.fps

    def save(self, path: str | Path) -> Path:
        """Write the clip in one step and return its path; the suffix names the container.

        .mp4 is H.264 and needs even sizes: an odd edge is repeated once. .webm is VP9. .gif
        loops forever. .png is a contact sheet of up to 12 evenly spaced frames. An existing
        file is replaced. Raises InvalidOutput when the path or the clip does not fit the
        container, and OutputNotWritten when the file system fails half way; then nothing new is
        there.
        """
        target = check_destination(path, fps=self.fps)
        if len(self.frames) == 0:
            raise InvalidOutput(f"a clip of 0 frames cannot be saved as {str(path)!r}")
        with replacing(target) as partial:
            encode(self.frames, self.fps, partial, target.suffix.lower())
        return target
