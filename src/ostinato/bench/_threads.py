"""The thread count of a benchmark: both sides of a comparison get the same, and it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ostinato.env import Environment
from ostinato.errors import BadInput


def threads_for(asked: int | None) -> int:
    """Return what was asked for, else OSTINATO_NUM_THREADS, else 1.

    Raises BadInput for another count than the variable's, since that is what engines follow.
    """
    forced = Environment.read().num_threads
    if asked is not None and forced is not None and asked != forced:
        raise BadInput(
            f"--threads is {asked}, but OSTINATO_NUM_THREADS has every engine use {forced}; "
            "unset the variable, or leave --threads out"
        )
    return asked or forced or 1


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set what models without a count of their own get; the caller's count is back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
