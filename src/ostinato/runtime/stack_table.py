"""What stacks of one key are taken to cost, and which of them are worth a trial.

A stack that is never run is never measured, so a guess that is too dear would stand for ever. Sizes
that nobody has measured are therefore tried a few times whatever their price says, from the
smallest on, twice as many calls each time, as long as the size before did pay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate

from ostinato.runtime.scheduler import StackTable

TRIALS = 3  # measurements after which a size is known; the median of three bears a wrong one
_GAIN = 0.97  # of its parts' seconds that a stack must stay under to pay
# A call that takes longer is its device's work, and what a stack saves of it is nothing but the
# reading of weights, which an estimate knows.
_LONG_S = 0.5


def stack_table(
    known: Mapping[int, float], guess: Callable[[int], float], *, most: int
) -> StackTable:
    """Return the prices of 1, 2, ... `most` stacked calls.

    known: seconds by number of calls, 1 among them. guess: seconds of a number where no stack was
    ever measured; never taken for more than its parts. Between two known sizes the price is on the
    line through them, beyond the last it goes on as from the last but one.
    """
    sizes = sorted(known)
    seconds = [_price(items, sizes, known, guess) for items in range(1, most + 1)]
    # Fewer calls never take longer than more.
    return StackTable(
        tuple(accumulate(reversed(seconds), min))[::-1], _trial(sizes, known, guess, most)
    )


def _price(
    items: int, sizes: list[int], known: Mapping[int, float], guess: Callable[[int], float]
) -> float:
    if items in known:
        return known[items]
    last = sizes[-1]
    if last == 1:
        return min(guess(items), items * known[1])
    if items > last:
        before = sizes[-2]
        slope = (known[last] - known[before]) / (last - before)
        return known[last] + (items - last) * max(slope, 0.0)
    after = bisect_left(sizes, items)
    low, high = sizes[after - 1], sizes[after]
    return known[low] + (items - low) / (high - low) * (known[high] - known[low])


def _trial(
    sizes: list[int], known: Mapping[int, float], guess: Callable[[int], float], most: int
) -> int:
    """Return up to how many calls are stacked to learn what they take; 0 for none."""
    last = sizes[-1]
    if last >= most:
        return 0
    pays_s = _GAIN * max(last, 2) * known[1]
    pays = known[last] < pays_s if last > 1 else known[1] < _LONG_S or guess(2) < pays_s
    return min(2 * last, most) if pays else 0
