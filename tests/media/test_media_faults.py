"""A save that fails half way leaves the folder, the process and the clip as they were."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ostinato.errors import OutputNotWritten
from ostinato.media import Video, decode
from support.faults import Holdings

SUFFIXES = (".mp4", ".webm", ".gif", ".png")
FULL = Path("/dev/full")


@pytest.fixture
def clip() -> Video:
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    return Video(frames=noise, fps=24)


@pytest.fixture(params=SUFFIXES)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a path that holds an earlier clip; afterwards that one is whole and alone."""
    frames = np.full((2, 32, 32, 3), 90, np.uint8)
    path = Video(frames=frames, fps=24).save(tmp_path / f"clip{request.param}")
    before, held = path.read_bytes(), Holdings.now()
    yield path
    assert Holdings.now() == held
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


class Broken(np.ndarray):
    """Frames that fail to be read half way, by whatever `fails` does."""

    fails: Callable[[], None]

    def __iter__(self) -> Iterator[np.ndarray]:
        for index, frame in enumerate(np.asarray(self)):
            if index == len(self) // 2:
                self.fails()
            yield frame

    def __getitem__(self, index: object) -> np.ndarray:
        if isinstance(index, np.ndarray):  # how a contact sheet picks its frames
            self.fails()
        return np.asarray(self)[index]  # type: ignore[index]


def broken(clip: Video, fails: Callable[[], None]) -> Video:
    frames = clip.frames.view(Broken)
    frames.fails = fails
    return Video(frames=frames, fps=clip.fps)


def test_an_encoder_that_fails_half_way(clip: Video, earlier: Path) -> None:
    def fails() -> None:
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        broken(clip, fails).save(earlier)


def test_an_interrupt_half_way(clip: Video, earlier: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            broken(clip, lambda: signal.raise_signal(signal.SIGINT)).save(earlier)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk(clip: Video, earlier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = earlier.with_name(".ostinato-full.partial")
    partial.symlink_to(FULL)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "full")
    with pytest.raises(OutputNotWritten, match="No space left on device") as caught:
        clip.save(earlier)
    assert str(earlier) in str(caught.value)
    assert ".ostinato" not in str(caught.value), "nobody can do anything about our own file"
    assert FULL.exists()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_quota(clip: Video, earlier: Path, share: float) -> None:
    """The last byte counts as the first: a short write is none."""
    with tempfile.TemporaryDirectory() as folder:
        size = clip.save(Path(folder) / earlier.name).stat().st_size
    limit = max(10, int(share * size) - 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OutputNotWritten, match="File too large"):
            clip.save(earlier)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_goes_away_half_way(clip: Video, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    def fails() -> None:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    with pytest.raises(OutputNotWritten, match="could not be written"):
        broken(clip, fails).save(folder / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


def test_the_same_clip_can_be_saved_after_a_failure(clip: Video, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    whole = clip.save(path).read_bytes()
    with pytest.raises(ZeroDivisionError):
        broken(clip, lambda: 1 // 0).save(path)  # type: ignore[arg-type]
    assert clip.save(path).read_bytes() == whole
    assert len(decode(path).frames) == len(clip.frames)
    assert os.listdir(tmp_path) == ["clip.mp4"]
