"""Alternated measurement: contestants take turns in one process, and their ratio gets an interval.

A machine drifts: clocks change, caches fill, neighbours come and go. Runs that alternate share what
the machine does, so it cancels in their ratio; runs after each other do not. Garbage is collected
before each run and not during it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import numpy as np

from ostinato.errors import BadInput

# Seconds by round: one number, or as many in every round, such as those of a request's steps.
Rounds: TypeAlias = Sequence[float] | Sequence[Sequence[float]]

MIN_ROUNDS = 6
_RESAMPLES = 10_000


class Ratio(NamedTuple):
    """A ratio of medians, and its 95 % interval."""

    value: float
    low: float
    high: float


def alternate(
    runs: Mapping[str, Callable[[], float]], *, rounds: int, warm_up: int
) -> dict[str, tuple[float, ...]]:
    """Run every contestant once a round; returns the seconds of each, by round.

    A contestant returns the seconds that it took, by its own clock (`timed` makes one that is
    timed as a whole). The order is turned round with every round, so that what drifts within one
    falls on all alike. The first `warm_up` rounds are not kept.
    Raises BadInput for fewer than six rounds, whose median and interval say too little.
    """
    if rounds < MIN_ROUNDS:
        raise BadInput(f"{rounds} rounds say too little; expected at least {MIN_ROUNDS}")
    names = tuple(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with no_collection():
        for index in range(-warm_up, rounds):
            for name in names if index % 2 == 0 else reversed(names):
                gc.collect()
                spent = runs[name]()
                if index >= 0:
                    seconds[name].append(spent)
    return {name: tuple(values) for name, values in seconds.items()}


def timed(run: Callable[[], object]) -> Callable[[], float]:
    """Make a contestant of a call: it returns how many seconds the call took."""

    def measured() -> float:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    return measured


def ratio_of_medians(numerator: Rounds, denominator: Rounds, *, seed: int) -> Ratio:
    """Compare two contestants of one alternation, entry `i` of each being of round `i`.

    The interval is the percentile bootstrap over rounds: B. Efron, R. Tibshirani, An Introduction
    to the Bootstrap (1993), chapter 13. Whole rounds are drawn, so that both contestants keep the
    machine they met, and numbers of one round, which depend on each other, stay together.
    """
    num_rounds = len(numerator)
    pairs = np.array([numerator, denominator], dtype=np.float64).reshape(2, num_rounds, -1)
    drawn = np.random.default_rng(seed).integers(num_rounds, size=(_RESAMPLES, num_rounds))
    above, below = np.median(pairs[:, drawn].reshape(2, _RESAMPLES, -1), axis=2)
    low, high = np.quantile(above / below, (0.025, 0.975))
    value = np.median(pairs[0]) / np.median(pairs[1])
    return Ratio(value=float(value), low=float(low), high=float(high))


@contextmanager
def no_collection() -> Iterator[None]:
    """Leave collections to the caller, and spare them what was there before.

    The collector's setting is back afterwards.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
