"""Clips survive the trip through every container, and a failed write leaves nothing behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from ostinato.errors import BadInput, InvalidOutput
from ostinato.media import SUFFIXES, Video, check_destination, decode, replacing
from ostinato.media._encode import contact_sheet


def _clip(num_frames: int = 12, height: int = 64, width: int = 96) -> NDArray[np.uint8]:
    """A soft disc that moves over a gradient: content that 4:2:0 chroma can carry."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    for t in range(num_frames):
        distance = np.hypot(y - height / 2, x - 20 - 4 * t)
        disc = np.clip((18 - distance) / 6, 0, 1)[..., None]
        backdrop = np.stack([30 + 0.3 * x, 40 + 0.4 * y, 90 + 0 * x], axis=-1)
        frames[t] = backdrop * (1 - disc) + np.array([210.0, 60.0, 50.0]) * disc
    return frames


def _psnr(expected: NDArray[np.uint8], actual: NDArray[np.uint8]) -> float:
    assert expected.shape == actual.shape
    error = np.mean((expected.astype(np.float64) - actual) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-12)))


@pytest.mark.parametrize("fps", [1 / 50, 8.0, 23.976, 24.0, 24000 / 1001, 30000 / 1001])
@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".MP4"])
def test_clip_reopens_with_the_same_frames(tmp_path: Path, suffix: str, fps: float) -> None:
    frames = _clip()
    path = Video(frames=frames, fps=fps).save(tmp_path / f"clip{suffix}")
    again = decode(path)
    # A GIF counts in hundredths of a second, so its rate is only close.
    assert again.fps == pytest.approx(fps, rel=0.02 if suffix == ".gif" else 1e-5)
    assert _psnr(frames, again.frames) > 38
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif"])
def test_odd_sizes(tmp_path: Path, suffix: str) -> None:
    frames = _clip(5, 63, 95)
    again = decode(Video(frames=frames, fps=24).save(tmp_path / f"odd{suffix}"))
    if suffix == ".mp4":
        assert again.frames.shape == (5, 64, 96, 3)
        assert _psnr(again.frames[:, 62:63], again.frames[:, 63:64]) > 38
    assert _psnr(frames, again.frames[:, :63, :95]) > 38


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_frame(tmp_path: Path, suffix: str) -> None:
    frames = _clip(1)
    again = decode(Video(frames=frames, fps=24).save(tmp_path / f"one{suffix}"))
    assert _psnr(frames, again.frames) > 38


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif"])
def test_still_clip_keeps_all_its_frames(tmp_path: Path, suffix: str) -> None:
    frames = np.repeat(_clip(1), 10, axis=0)
    again = decode(Video(frames=frames, fps=10).save(tmp_path / f"still{suffix}"))
    assert _psnr(frames, again.frames) > 38


def test_mp4_plays_everywhere(tmp_path: Path) -> None:
    path = Video(frames=_clip(), fps=24).save(tmp_path / "clip.mp4")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.codec_context.colorspace == 1  # BT.709 in ISO/IEC 23091-2
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat"), "the index must come first to stream"


def test_webm_is_vp9(tmp_path: Path) -> None:
    path = Video(frames=_clip(), fps=24).save(tmp_path / "clip.webm")
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "vp9"


def test_gif_loops_forever_and_is_as_long_as_its_frames_say(tmp_path: Path) -> None:
    path = Video(frames=_clip(24), fps=24).save(tmp_path / "clip.gif")
    data = path.read_bytes()
    loop = data.index(b"NETSCAPE2.0\x03\x01") + 13
    assert data[loop : loop + 2] == b"\x00\x00"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        ticks = [float((frame.pts or 0) * stream.time_base) for frame in container.decode(stream)]
    assert ticks == pytest.approx([t / 24 for t in range(24)], abs=0.0051)


def test_gif_of_few_colors_is_exact(tmp_path: Path) -> None:
    frames = np.zeros((6, 32, 32, 3), np.uint8)
    frames[:] = (20, 30, 90)
    for t in range(6):
        frames[t, 8:16, 2 + 3 * t : 10 + 3 * t] = (220, 40, 30)
    again = decode(Video(frames=frames, fps=12.5).save(tmp_path / "flat.gif"))
    assert np.array_equal(again.frames, frames)
    assert again.fps == pytest.approx(12.5)


def test_gif_refuses_a_rate_that_players_do_not_keep(tmp_path: Path) -> None:
    with pytest.raises(InvalidOutput, match="at most 50"):
        Video(frames=_clip(3), fps=60).save(tmp_path / "fast.gif")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suffix", "fps"), [(".mp4", 0.0004), (".webm", 0.0009), (".gif", 0.0004), (".gif", 0.0015)]
)
def test_rate_too_slow_for_the_container_is_refused(
    tmp_path: Path, suffix: str, fps: float
) -> None:
    path = tmp_path / f"slow{suffix}"
    with pytest.raises(InvalidOutput, match="plays at least"):
        check_destination(path, fps=fps)
    with pytest.raises(InvalidOutput, match="plays at least"):
        Video(frames=_clip(3), fps=fps).save(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
def test_slowest_rate_is_kept(tmp_path: Path, suffix: str) -> None:
    path = Video(frames=_clip(3), fps=1 / 1001).save(tmp_path / f"slow{suffix}")
    assert decode(path).fps == pytest.approx(1 / 1001)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_layout_in_memory_does_not_matter(tmp_path: Path, suffix: str) -> None:
    frames = _clip(6)[::-2, ::-1, ::2, ::-1]
    assert not frames.flags.c_contiguous
    strided = Video(frames=frames, fps=10).save(tmp_path / f"strided{suffix}")
    packed = Video(frames=frames.copy(), fps=10).save(tmp_path / f"packed{suffix}")
    assert np.array_equal(decode(strided).frames, decode(packed).frames)
    if suffix != ".png":
        assert _psnr(frames, decode(strided).frames) > 30


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_pixel(tmp_path: Path, suffix: str) -> None:
    frames = np.full((1, 1, 1, 3), 90, np.uint8)
    again = decode(Video(frames=frames, fps=24).save(tmp_path / f"pixel{suffix}")).frames
    assert np.abs(again[:, :1, :1].astype(int) - 90).max() <= 3


def test_png_is_a_sheet_of_evenly_spaced_frames(tmp_path: Path) -> None:
    frames = _clip(96, 32, 48)
    sheet = decode(Video(frames=frames, fps=24).save(tmp_path / "sheet.png")).frames[0]
    assert sheet.shape == (3 * 32 + 2 * 4, 4 * 48 + 3 * 4, 3)
    assert np.array_equal(sheet, contact_sheet(frames))
    assert np.array_equal(sheet[:32, :48], frames[0])
    assert np.array_equal(sheet[-32:, -48:], frames[-1])
    assert contact_sheet(frames[:5]).shape == (2 * 32 + 4, 4 * 48 + 3 * 4, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip.avi", "expected one of .mp4, .webm, .gif, .png"),
        ("clip", "expected one of"),
        ("absent/clip.mp4", "does not exist"),
        ("folder.mp4", "is a folder"),
        ("file.txt/clip.mp4", "does not exist"),
        ("x" * 300 + ".mp4", "cannot be a file"),
        ("zero\0byte.mp4", "cannot be a file"),
        ("~nosuchuser/clip.mp4", "does not exist"),
    ],
)
def test_bad_destination_is_refused_before_any_work(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidOutput, match=message):
        check_destination(tmp_path / name)
    with pytest.raises(InvalidOutput, match=message):
        Video(frames=_clip(2), fps=24).save(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(InvalidOutput, match="not writable"):
        check_destination(tmp_path / "clip.mp4")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that takes no file")
def test_folder_that_takes_no_file_is_refused_even_to_root() -> None:
    with pytest.raises(InvalidOutput, match="not writable"):
        check_destination("/proc/clip.mp4")


def test_clip_without_frames_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOutput, match="0 frames"):
        Video(frames=np.zeros((0, 8, 8, 3), np.uint8), fps=24).save(tmp_path / "none.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("frames", "fps"),
    [
        (np.zeros((2, 8, 8, 3), np.float32), 24.0),
        (np.zeros((2, 8, 8), np.uint8), 24.0),
        (np.zeros((2, 8, 8, 4), np.uint8), 24.0),
        (np.zeros((2, 0, 8, 3), np.uint8), 24.0),
        (np.zeros((2, 8, 8, 3), np.uint8), 0.0),
        (np.zeros((2, 8, 8, 3), np.uint8), float("nan")),
    ],
)
def test_values_that_are_no_clip(frames: NDArray[np.uint8], fps: float) -> None:
    with pytest.raises(BadInput):
        Video(frames=frames, fps=fps)


def test_failed_write_keeps_the_earlier_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = Video(frames=_clip(3), fps=24).save(tmp_path / "clip.gif")
    before = path.read_bytes()
    with pytest.raises(InvalidOutput):
        Video(frames=_clip(4), fps=99).save(path)

    def write_half() -> None:
        with replacing(path) as partial:
            partial.write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert [p.name for p in tmp_path.iterdir()] == ["clip.gif"]
    assert path.read_bytes() == before


def test_saving_again_replaces_and_honors_the_umask(tmp_path: Path) -> None:
    path = Video(frames=_clip(3), fps=24).save(tmp_path / "clip.mp4")
    Video(frames=_clip(5), fps=24).save(path)
    assert len(decode(path).frames) == 5
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_decode_refuses_what_is_no_clip(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        decode(tmp_path / "absent.mp4")
    (tmp_path / "text.mp4").write_text("not a clip")
    with pytest.raises(BadInput, match="cannot be decoded"):
        decode(tmp_path / "text.mp4")
