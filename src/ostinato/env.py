"""The typed environment: every variable that Ostinato reads, in one place, with one prefix."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ostinato.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Settings taken from `OSTINATO_*` variables.

    num_threads: CPU threads for kernels; None leaves the library's choice.
    runs_dir: where `ostinato train` keeps checkpoints and metrics (outside any checkout).
    """

    num_threads: int | None
    runs_dir: Path

    @staticmethod
    def read() -> Environment:
        """Read the process environment; raises BadInput when a value does not parse."""
        threads = os.environ.get("OSTINATO_NUM_THREADS")
        if threads is not None and not (threads.isdigit() and int(threads) > 0):
            raise BadInput(
                f"OSTINATO_NUM_THREADS is {threads!r}; expected a whole number of at least 1"
            )
        home = os.environ.get("OSTINATO_RUNS_DIR")
        return Environment(
            num_threads=int(threads) if threads else None,
            runs_dir=Path(home) if home else Path.home() / ".cache" / "ostinato" / "runs",
        )
