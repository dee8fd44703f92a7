"""Where an artifact may be written: checked before any work, replaced in one step."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostinato.errors import InvalidOutput, OutputNotWritten

SUFFIXES = (".mp4", ".webm", ".gif", ".png")
MAX_DENOMINATOR = 1001  # of the rates that containers are given: exact for NTSC's 30000/1001
_GIF_MIN_FPS = 100 / 65535  # GIF89a keeps a delay in 16 bits
_GIF_MAX_FPS = 50.0  # GIF89a counts in 1/100 s, and players slow a delay below two down to ten


def check_destination(
    path: str | Path, *, fps: float | None = None, suffixes: tuple[str, ...] = SUFFIXES
) -> Path:
    """Return the path when a file can be written there.

    fps: frames per second, where they are known. Raises InvalidOutput for an unknown suffix, a
    rate that the container cannot keep, a folder that is missing or takes no file, and a path that
    is itself a folder or no file name at all. Nothing stays behind.
    """
    target = Path(path)
    if _is_folder(target):
        raise InvalidOutput(f"output {str(path)!r} is a folder; name a file in it")
    if target.suffix.lower() not in suffixes:
        raise InvalidOutput(
            f"output {str(path)!r} ends in {target.suffix!r}; expected one of {', '.join(suffixes)}"
        )
    if fps is not None:
        _check_rate(fps, target.suffix.lower())
    folder = target.parent
    if not folder.is_dir():
        raise InvalidOutput(f"output folder {str(folder)!r} does not exist; create it first")
    try:
        # Asking for permission is not enough: root has it everywhere, read-only mounts included.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOutput(
            f"output folder {str(folder)!r} is not writable ({reason}); choose another"
        ) from error
    return target


def _is_folder(target: Path) -> bool:
    try:
        target.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a name too long, a zero byte, a loop of links
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidOutput(
            f"output {str(target)!r} cannot be a file ({reason}); choose another name"
        ) from error
    return target.is_dir()


def _check_rate(fps: float, suffix: str) -> None:
    if suffix == ".png":  # a sheet does not play
        return
    if fps * MAX_DENOMINATOR < 1:
        raise InvalidOutput(
            f"fps is {fps:g}, but {suffix} plays at least 1/{MAX_DENOMINATOR} frames a second"
        )
    if suffix == ".gif" and fps < _GIF_MIN_FPS:
        raise InvalidOutput(
            f"fps is {fps:g}, but GIF plays at least 100/65535 frames a second; save .mp4 or .webm"
        )
    if suffix == ".gif" and fps > _GIF_MAX_FPS:
        raise InvalidOutput(
            f"fps is {fps:g}, but GIF plays at most {_GIF_MAX_FPS:g}; save .mp4 or .webm"
        )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder that takes the place of `path` when the block succeeds.

    When the block raises, what it wrote is removed and an earlier file at `path` stays whole.
    Raises OutputNotWritten where the file system failed.
    """
    partial = path.with_name(f".ostinato-{secrets.token_hex(8)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputNotWritten(
            f"{str(path)!r} could not be written ({reason}); what was there before is unchanged: "
            "make room, or choose another folder"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
