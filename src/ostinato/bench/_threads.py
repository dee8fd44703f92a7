"""The thread count of a benchmark: both sides of a comparison get the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ostinato.card import ModelCard
from ostinato.env import Environment


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set what models without a count of their own get; the caller's count is back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kernel_threads(card: ModelCard) -> int | None:
    """Return the count that an engine takes for this model, None for the process's own."""
    return Environment.read().num_threads or card.cpu_threads
