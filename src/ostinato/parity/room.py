"""Whether there is memory for a model's float64 reference, told before anything of it is read.

Invariant: a reference that does not fit is refused with numbers, so that a gate which needs it is
red by name and the process is not killed while it loads.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ostinato.backend.checkpoint import read_headers, weight_files
from ostinato.errors import OstinatoError
from ostinato.parity.folders import WeightFolder

_FLOAT64_BYTES = 8
_GIB = 2**30
_MEMINFO, _CGROUP_LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


class ReferenceTooLarge(OstinatoError):
    """The float64 reference of a model needs more memory than there is."""

    code = "reference_too_large"


def require_room(folders: Iterable[WeightFolder], available_bytes: int | None = None) -> None:
    """Hold what a reference of these weights takes against the memory that is available.

    Every number takes eight bytes, beside the largest component as it is stored, while that is
    read; activations are not counted. Raises ReferenceTooLarge, InvalidCheckpoint.
    """
    found = list(folders)
    numbers = {each.name: _numbers(each) for each in found}
    stored = max((_stored_bytes(each) for each in found), default=0)
    needed = _FLOAT64_BYTES * sum(numbers.values()) + stored
    available = memory_available() if available_bytes is None else available_bytes
    if needed > available:
        told = ", ".join(f"{name} {count / 1e6:.0f}" for name, count in numbers.items())
        raise ReferenceTooLarge(
            f"the float64 reference needs {needed / _GIB:.1f} GiB ({told} million numbers of 8 "
            f"bytes, and {stored / _GIB:.1f} GiB as they are read), and {available / _GIB:.1f} GiB "
            "are available; run this gate on a machine with more memory, or on a smaller model "
            "of the family"
        )


def memory_available(meminfo: Path = _MEMINFO, cgroup_limit: Path = _CGROUP_LIMIT) -> int:
    """Return how many bytes a process can still take, by what the system tells of it.

    Linux tells what is available and what a container may use (proc(5); the kernel's cgroup-v2
    document, "memory.max"); elsewhere it is all the memory that there is.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    told = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(meminfo), re.MULTILINE)
    limit = _text(cgroup_limit).strip()  # the word max where there is none
    return min(
        total,
        int(told[1]) * 1024 if told else total,
        int(limit) if limit.isdigit() else total,
    )


def _numbers(folder: WeightFolder) -> int:
    headers = read_headers(folder.path, folder.stem)
    return sum(math.prod(header.shape) for header in headers.values())


def _stored_bytes(folder: WeightFolder) -> int:
    return sum(file.stat().st_size for file in weight_files(folder.path, folder.stem))


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.is_file() else ""
