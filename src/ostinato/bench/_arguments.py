"""What benchmarks are told: those that all take, and those of one; each reads all that it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArguments:
    """quick: a rougher measurement in a fraction of the time. seed: of whatever is drawn.

    threads: CPU threads of kernels; None for OSTINATO_NUM_THREADS, or 1 where that is not set.
    """

    quick: bool = False
    seed: int = 0
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaksArguments(BenchArguments):
    """requests: how many to serve."""

    requests: int = 1000
