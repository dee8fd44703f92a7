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
    cache_dir: where what a machine was measured to do is kept from one process to the next; safe
    to delete. runs_dir: where `ostinato train` keeps checkpoints and metrics (outside any
    checkout). In both a leading ~ is the home folder.
    """

    num_threads: int | None
    cache_dir: Path
    runs_dir: Path

    @staticmethod
    def read() -> Environment:
        """Read the process environment; raises BadInput when a value does not parse."""
        threads = os.environ.get("OSTINATO_NUM_THREADS")
        if threads and not re.fullmatch("0*[1-9][0-9]{0,3}", threads):
            raise BadInput(
                f"OSTINATO_NUM_THREADS is {threads!r}; expected a whole number from 1 to 9999"
            )
        cache_dir = _folder("OSTINATO_CACHE_DIR", Path.home() / ".cache" / "ostinato")
        return Environment(
            num_threads=int(threads) if threads else None,
            cache_dir=cache_dir,
            runs_dir=_folder("OSTINATO_RUNS_DIR", cache_dir / "runs"),
        )


def _folder(variable: str, default: Path) -> Path:
    given = os.environ.get(variable)
    return Path(given).expanduser() if given else default
