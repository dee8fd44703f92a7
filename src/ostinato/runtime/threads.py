"""The CPU as a device: one turn at a time in a process, on a stated number of threads.

Three settings of torch belong to the process and change the bits of a result: the thread count,
the default dtype (library schedulers make tensors in it) and the precision of float32 products.
So a turn sets what it needs, and puts it back before it lets go of the CPU: what a model returns
depends neither on which model ran before nor on what the caller's program set. Engines of one
process share the CPU, and one lock, since the settings they would fight over are one.
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
    with _CPU, _plain_float32():
        before = torch.get_num_threads()
        wanted = before if num_threads is None else num_threads
        if wanted != before:
            torch.set_num_threads(wanted)
        try:
            yield wanted
        finally:
            if wanted != before:
                torch.set_num_threads(before)


@contextmanager
def _plain_float32() -> Generator[None, None, None]:
    """Make tensors without a dtype float32, and multiply float32 as float32."""
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
