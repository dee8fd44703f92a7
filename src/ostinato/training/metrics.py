"""The log of a run: one JSON object a line in `metrics.jsonl`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

Metrics: TypeAlias = Mapping[str, float | int | str]
MetricsCallback: TypeAlias = Callable[[Metrics], None]

METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """Append metrics to a file and hand them to a callback."""

    def __init__(
        self, run_dir: Path, callback: MetricsCallback | None, resume_step: int = 0
    ) -> None:
        self._path = run_dir / METRICS_FILE
        self._callback = callback
        self._drop_after(resume_step)

    def write(self, metrics: Metrics) -> None:
        """Append one line."""
        with self._path.open("a") as file:
            file.write(json.dumps(dict(metrics)) + "\n")
        if self._callback is not None:
            self._callback(metrics)

    def _drop_after(self, step: int) -> None:
        """Forget lines of steps that a resumed run is about to take again."""
        if not self._path.exists():
            return
        kept = [
            line
            for line in self._path.read_text().splitlines()
            if line and json.loads(line).get("step", 0) <= step
        ]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(line + "\n" for line in kept))
        os.replace(partial, self._path)
