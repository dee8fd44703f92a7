"""What every benchmark is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArguments:
    """quick: a rougher measurement in a fraction of the time. requests: how many to serve, where
    requests are what is counted. seed: of whatever is drawn. threads: CPU threads of kernels.
    """

    quick: bool
    requests: int
    seed: int
    threads: int
