"""Reading a clip back: the other half of `Video.save`."""

from __future__ import annotations

from pathlib import Path

import av
import av.error
import numpy as np

from ostinato.errors import BadInput
from ostinato.media._video import Video


def decode(path: str | Path) -> Video:
    """Read every frame of a clip (one, for a still image).

    fps is the rate at which the frames play. Raises BadInput when the file is missing, is not a
    clip or is damaged.
    """
    if not Path(path).is_file():
        raise BadInput(f"clip {str(path)!r} does not exist or is not a file")
    frames: list[np.ndarray] = []
    times_s: list[float] = []
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise BadInput(f"clip {str(path)!r} holds no video stream")
            stream = container.streams.video[0]
            for frame in container.decode(stream):
                frames.append(frame.to_ndarray(format="rgb24"))
                times_s.append(frame.time or 0.0)
            rate = float(stream.average_rate or 1)
            variable = container.format.name == "gif"
    except av.error.FFmpegError as error:
        raise BadInput(f"clip {str(path)!r} cannot be decoded: {error}") from error
    if not frames:
        raise BadInput(f"clip {str(path)!r} holds no frames")
    if variable and times_s[-1] > times_s[0]:
        # A GIF has whole ticks between frames; the stream's average leaves the last one out.
        rate = (len(frames) - 1) / (times_s[-1] - times_s[0])
    return Video(frames=np.stack(frames), fps=rate)
