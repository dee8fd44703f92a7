"""The CPU as a device: one turn at a time in a process, on a stated number of threads.

torch's thread count belongs to the process, and it changes the bits of some kernels. So a turn
that needs another count sets it, and puts it back before anybody else can see it: what a model
returns must not depend on which model ran before. Engines of one process share the CPU, and one
lock, since the setting they would fight over is one.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import torch

_CPU = threading.Lock()


@contextmanager
def cpu_turn(num_threads: int | None) -> Generator[int, None, None]:
    """Hold the CPU for one turn; yields the thread count in force (None: the process's own)."""
    with _CPU:
        before = torch.get_num_threads()
        wanted = before if num_threads is None else num_threads
        if wanted != before:
            torch.set_num_threads(wanted)
        try:
            yield wanted
        finally:
            if wanted != before:
                torch.set_num_threads(before)
