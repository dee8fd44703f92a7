"""The typed environment: every variable that Ostinato reads, in one place, with one prefix."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ostinato.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Settings taken from `OSTINATO_*` variables.

    An empty variable counts as unset.
    num_threads: CPU threads for kernels; None leaves the library's choice.
    runs_dir: where `ostinato train` keeps checkpoints and metrics (outside any checkout); a
    leading ~ is the home folder.
    """

    num_threads: int | None
    runs_dir: Path

    @staticmethod
    def read() -> Environment:
        """Read the process environment; raises BadInput when a value does not parse."""
        threads = os.environ.get("OSTINATO_NUM_THREADS")
        if threads and not re.fullmatch("0*[1-9][0-9]{0,3}", threads):
            raise BadInput(
                f"OSTINATO_NUM_THREADS is {threads!r}; expected a whole number from 1 to 9999"
            )
        home = os.environ.get("OSTINATO_RUNS_DIR")
        return Environment(
            num_threads=int(threads) if threads else None,
            runs_dir=Path(home).expanduser()
            if home
            else Path.home() / ".cache" / "ostinato" / "runs",
        )
