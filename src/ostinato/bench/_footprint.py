"""What a process holds of its machine, as the kernel counts it (Linux)."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ostinato.errors import BadInput

_SELF = Path("/proc/self")


class Footprint(NamedTuple):
    """Threads of any library, open descriptors, resident memory."""

    threads: int
    descriptors: int
    rss_bytes: int


def footprint() -> Footprint:
    """Look, after garbage is collected and free memory is given back.

    Raises BadInput where the kernel does not tell.
    """
    if not (_SELF / "statm").is_file():
        raise BadInput("leaks are counted in /proc/self, which this system lacks; run it on Linux")
    gc.collect()
    _trim()
    pages = int((_SELF / "statm").read_text().split()[1])
    return Footprint(
        threads=len(os.listdir(_SELF / "task")),
        descriptors=len(os.listdir(_SELF / "fd")),
        rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
    )


def slope(positions: Sequence[int], values: Sequence[int]) -> float:
    """Return the growth of a value by unit of position: the median slope of all pairs.

    An allocator gives back a few megabytes now and then, and takes them again at once. One such dip
    at the edge turns a least-squares line; the median stands up to 29 % of them.
    Source: P. K. Sen, JASA 63 (1968).
    """
    assert len(positions) > 1, "a line needs two points"
    first, second = np.triu_indices(len(positions), k=1)
    x, y = np.asarray(positions, np.float64), np.asarray(values, np.float64)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def _trim() -> None:
    """Have glibc give free memory back; other allocators have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
