"""The CPU as a device: one turn at a time in a process, on a stated number of threads.

torch's thread count, default dtype and float32 precision belong to the process and change the bits
of a result. So a turn sets what it needs, and puts it back before it lets go: what a model returns
depends neither on which model ran before nor on what the caller's program set. Engines of one
process share the CPU, and one lock, since the settings they would fight over are one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from ostinato.backend.loading import process_settings


@contextmanager
def cpu_turn(num_threads: int | None) -> Generator[int, None, None]:
    """Hold the CPU for one turn; yields the thread count in force (None: the process's own)."""
    with process_settings():
        before = torch.get_num_threads()
        wanted = before if num_threads is None else num_threads
        if wanted != before:
            torch.set_num_threads(wanted)
        try:
            yield wanted
        finally:
            if wanted != before:
                torch.set_num_threads(before)
