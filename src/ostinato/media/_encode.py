"""Containers: how frames become bytes on disk, all of it through PyAV."""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import av
import av.container
import av.filter
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, Interpolation
from numpy.typing import NDArray

from ostinato.media._destination import MAX_DENOMINATOR

if TYPE_CHECKING:
    from typing_extensions import Buffer

Frames = NDArray[np.uint8]  # [T, H, W, 3]

# Visually lossless: on flat synthetic scenes the loss is that of 4:2:0 chroma, not of the codec.
_X264 = (("crf", "14"), ("preset", "medium"))
_VP9 = (("crf", "14"), ("b", "0"), ("deadline", "good"), ("cpu-used", "2"), ("row-mt", "1"))
_GIF_TICK = Fraction(1, 100)  # the unit of frame delays in GIF89a
_SHEET_MAX_FRAMES = 12
_SHEET_COLUMNS = 4
_SHEET_GAP = 4


def encode(frames: Frames, fps: float, path: Path, suffix: str) -> None:
    """Write at least one frame to `path` in the container that `suffix` names."""
    rate = Fraction(fps).limit_denominator(MAX_DENOMINATOR)
    if suffix == ".mp4":
        _encode_stream(_even(frames), rate, path, "mp4", "libx264", _X264)
    elif suffix == ".webm":
        _encode_stream(frames, rate, path, "webm", "libvpx-vp9", _VP9)
    elif suffix == ".gif":
        _encode_gif(frames, rate, path)
    else:
        assert suffix == ".png", suffix
        path.write_bytes(_png(contact_sheet(frames)))


def contact_sheet(frames: Frames) -> Frames:
    """Lay up to 12 evenly spaced frames, first and last among them, on a grid [H', W', 3]."""
    count = min(len(frames), _SHEET_MAX_FRAMES)
    picked = frames[np.linspace(0, len(frames) - 1, count).round().astype(int)]
    if count == 1:
        return picked[0]
    height, width = frames.shape[1:3]
    columns = min(count, _SHEET_COLUMNS)
    rows = math.ceil(count / columns)
    step_y, step_x = height + _SHEET_GAP, width + _SHEET_GAP
    sheet = np.full((rows * step_y - _SHEET_GAP, columns * step_x - _SHEET_GAP, 3), 255, np.uint8)
    for index, frame in enumerate(picked):
        y, x = index // columns * step_y, index % columns * step_x
        sheet[y : y + height, x : x + width] = frame
    return sheet


def _even(frames: Frames) -> Frames:
    """Repeat the last row or column of odd sizes: 4:2:0 H.264 has only even ones."""
    height, width = frames.shape[1:3]
    if height % 2 == 0 and width % 2 == 0:
        return frames
    return np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _encode_stream(
    frames: Frames,
    rate: Fraction,
    path: Path,
    container: str,
    codec: str,
    options: tuple[tuple[str, str], ...],
) -> None:
    muxer_options = {"movflags": "+faststart"} if container == "mp4" else {}
    with _muxer(path, container, muxer_options) as output:
        stream = output.add_stream(codec, rate=rate, options=dict(options))
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        # Untagged small clips are read as BT.601 by some players and as BT.709 by others.
        context = stream.codec_context
        context.colorspace = Colorspace.ITU709
        context.color_range = ColorRange.MPEG
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        for frame in frames:
            output.mux(stream.encode(_yuv420(frame)))
        output.mux(stream.encode(None))


class _File(io.FileIO):
    """A file that is written wholly or fails, and tells its muxer so by a negative count.

    A raw file writes less than it was given when a disk runs full, which the muxer would take for
    all of it. An exception would be lost on the way through the muxer, which writes on after it.
    """

    failure: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        """Write all of it and return its length, or minus the error number."""
        left = memoryview(data)
        try:
            while left:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = self.failure or error
            return -(error.errno or errno.EIO)
        return memoryview(data).nbytes


@contextmanager
def _muxer(
    path: Path, container: str, options: dict[str, str]
) -> Iterator[av.container.OutputContainer]:
    """Open a container on a file of our own, and raise whatever kept it from being written.

    The library does not close a file that it opened itself and could not write the header of.
    """
    with _File(path, "w") as file:
        with av.open(file, "w", format=container, container_options=options) as output:
            yield output
        if file.failure is not None:
            raise file.failure


def _yuv420(frame: Frames) -> av.VideoFrame:
    rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    return rgb.reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
        interpolation=Interpolation.AREA,
    )


def _encode_gif(frames: Frames, rate: Fraction, path: Path) -> None:
    """One palette for the whole clip, so that still areas do not flicker."""
    height, width = frames.shape[1:3]
    graph = _palette_graph(width, height, rate)
    for index, frame in enumerate(frames):
        rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        rgb.pts, rgb.time_base = index, 1 / rate
        graph.push(rgb)
    graph.push(None)
    with _muxer(path, "gif", {"loop": "0"}) as output:
        stream = output.add_stream("gif", rate=rate)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = height, width, "pal8"
        stream.codec_context.time_base = _GIF_TICK
        for index in range(len(frames)):
            indexed = graph.pull()
            assert isinstance(indexed, av.VideoFrame)
            # Rounding positions, not delays, keeps the clip as long as its frames say.
            indexed.pts, indexed.time_base = round(index / rate / _GIF_TICK), _GIF_TICK
            output.mux(stream.encode(indexed))
        output.mux(stream.encode(None))


def _palette_graph(width: int, height: int, rate: Fraction) -> av.filter.Graph:
    graph = av.filter.Graph()
    source = graph.add(
        "buffer",
        f"video_size={width}x{height}:pix_fmt=rgb24:pixel_aspect=1/1"
        f":time_base={rate.denominator}/{rate.numerator}"
        f":frame_rate={rate.numerator}/{rate.denominator}",
    )
    split = graph.add("split")
    palette = graph.add("palettegen", "stats_mode=full:reserve_transparent=0")
    mapped = graph.add("paletteuse", "dither=floyd_steinberg:diff_mode=rectangle")
    sink = graph.add("buffersink")
    source.link_to(split)
    split.link_to(palette, 0, 0)
    split.link_to(mapped, 1, 0)
    palette.link_to(mapped, 0, 1)
    mapped.link_to(sink)
    graph.configure()
    return graph


def _png(image: Frames) -> bytes:
    context = av.CodecContext.create("png", "w")
    assert isinstance(context, av.VideoCodecContext)
    context.height, context.width = image.shape[:2]
    context.pix_fmt, context.time_base = "rgb24", Fraction(1)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    packets = [*context.encode(frame), *context.encode(None)]
    return b"".join(bytes(packet) for packet in packets)
