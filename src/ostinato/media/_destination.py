"""Where an artifact may be written: checked before any work, replaced in one step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostinato.errors import InvalidOutput

SUFFIXES = (".mp4", ".webm", ".gif", ".png")
_GIF_MAX_FPS = 50.0  # GIF89a counts in 1/100 s, and players slow a delay below two down to ten


def check_destination(
    path: str | Path, *, fps: float | None = None, suffixes: tuple[str, ...] = SUFFIXES
) -> Path:
    """Return the path when a file can be written there.

    fps: frames per second, where they are known. Raises InvalidOutput for an unknown suffix, a
    rate that the container cannot keep, a folder that is missing or not writable, and a path that
    is itself a folder. Nothing is created.
    """
    target = Path(path)
    if target.is_dir():
        raise InvalidOutput(f"output {str(path)!r} is a folder; name a file in it")
    if target.suffix.lower() not in suffixes:
        raise InvalidOutput(
            f"output {str(path)!r} ends in {target.suffix!r}; expected one of {', '.join(suffixes)}"
        )
    if target.suffix.lower() == ".gif" and fps is not None and fps > _GIF_MAX_FPS:
        raise InvalidOutput(
            f"fps is {fps:g}, but GIF plays at most {_GIF_MAX_FPS:g}; save .mp4 or .webm"
        )
    folder = target.parent
    if not folder.is_dir():
        raise InvalidOutput(f"output folder {str(folder)!r} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidOutput(f"output folder {str(folder)!r} is not writable; choose another")
    return target


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder that takes the place of `path` when the block succeeds.

    When the block raises, what it wrote is removed and an earlier file at `path` stays whole.
    """
    partial = path.with_name(f".ostinato-{secrets.token_hex(8)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
