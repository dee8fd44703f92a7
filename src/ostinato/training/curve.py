"""The validation curve: losses on held-out scenes by step, from a run's log to what it exports.

Invariant: the curve of exported weights ends at the very step that they are of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from ostinato.backend.checkpoint import read_config
from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.layout import PROVENANCE
from ostinato.training.metrics import METRICS_FILE

# One row a measurement: `step`, and the mean flow-matching loss of each noise pattern.
Curve: TypeAlias = tuple[Mapping[str, int | float], ...]

STEP, LOSS_PREFIX, CURVE = "step", "val_", "validation"


def logged_curve(run_dir: Path, last_step: int) -> Curve:
    """Return the curve that a run logged, up to a step.

    Raises InvalidCheckpoint when that step was not measured.
    """
    path = run_dir / METRICS_FILE
    lines = path.read_text().splitlines() if path.is_file() else []
    curve = tuple(
        {name: value for name, value in row.items() if name == STEP or _is_loss(name)}
        for row in map(json.loads, filter(None, lines))
        if any(map(_is_loss, row)) and row[STEP] <= last_step
    )
    if not curve or curve[-1][STEP] != last_step:
        raise InvalidCheckpoint(
            f"{str(path)!r} holds no validation losses of step {last_step}; expected the log of "
            "the run that made the checkpoint"
        )
    return curve


def exported_curve(folder: Path) -> Curve:
    """Return the curve in the provenance of weights; empty where there is none.

    Raises InvalidCheckpoint when it is not a list of rows of numbers.
    """
    if not (folder / PROVENANCE).is_file():
        return ()
    try:
        return msgspec.convert(read_config(folder, PROVENANCE).get(CURVE, ()), Curve)
    except msgspec.ValidationError as error:
        raise InvalidCheckpoint(f"{folder / PROVENANCE}: {CURVE!r}: {error}") from error


def _is_loss(name: str) -> bool:
    return name.startswith(LOSS_PREFIX)
