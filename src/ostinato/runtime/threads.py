"""The CPU as a device: one turn at a time in a process, on a stated number of threads.

torch's thread count, default dtype and float32 precision belong to the process and change the bits
of a result. So a turn sets what it needs, and puts it back before it lets go: what a model returns
depends neither on which model ran before nor on what the caller's program set. Engines of one
process share the CPU, and one lock, since the settings they would fight over are one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch

from ostinato.backend.loading import process_settings
from ostinato.card import ModelCard
from ostinato.env import Environment


def stated_threads(forced: int | None, of_card: int | None) -> int | None:
    """Return the count that is stated, the environment's before the card's; None for neither."""
    return forced or of_card


def kernel_threads(card: ModelCard | None = None) -> int:
    """Return how many threads an engine that starts now gives a model's kernels.

    The process's own number where none is stated. card: None for a model whose card states none.
    """
    of_card = None if card is None else card.cpu_threads
    return stated_threads(Environment.read().num_threads, of_card) or torch.get_num_threads()


def told_threads(in_force: Mapping[str, int]) -> str:
    """Tell the counts, by model, that were in force: one number when they are all the same."""
    models: dict[int, list[str]] = {}
    for model, threads in in_force.items():
        models.setdefault(threads, []).append(model)
    if len(models) == 1:
        return str(next(iter(models)))
    return ", ".join(f"{threads} ({', '.join(models[threads])})" for threads in sorted(models))


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
