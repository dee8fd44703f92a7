"""What a verification leaves behind: where it may be written, known before any work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostinato.errors import InvalidOutput


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise InvalidOutput for whatever the file system does not let the block do to `path`."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = error.strerror if isinstance(error, OSError) else None
        raise InvalidOutput(
            f"{str(path)!r} cannot be written ({reason or error}); expected a file in a folder "
            "that exists and takes files"
        ) from error


def require_writable(path: Path) -> None:
    """Open the file as it will be; raises InvalidOutput, and leaves all as it was."""
    with writing(path):
        # Asking for permission is not enough: root has it everywhere, read-only mounts included.
        there = os.path.lexists(path)
        path.open("ab").close()
        if not there:
            path.unlink()
