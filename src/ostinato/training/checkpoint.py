"""Checkpoints of a run: tensors in safetensors, everything else in one JSON file.

Invariant: a checkpoint folder appears under its final name only when it is complete, and all
chance is keyed by (seed, step); so a run that resumes from step k makes the same weights, to the
bit, as one that was never stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from ostinato.errors import InvalidCheckpoint

CHECKPOINTS, STATE = "checkpoints", "state.json"
GROUPS = ("weights", "average", "optimizer")
_KEEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a run knows about itself besides tensors."""

    step: int  # optimizer steps done
    source_commit: str
    config_digest: str
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Tensors by group (`weights`, `average`, `optimizer`) and the state of the run."""

    state: RunState
    tensors: Mapping[str, Mapping[str, Tensor]]


def save_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically and drop all but the latest two."""
    folder = run_dir / CHECKPOINTS / f"step-{checkpoint.state.step:07d}"
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for group in GROUPS:
        tensors = {name: t.detach().contiguous() for name, t in checkpoint.tensors[group].items()}
        save_file(tensors, partial / f"{group}.safetensors")
    (partial / STATE).write_text(json.dumps(asdict(checkpoint.state), indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)
    for old in list_checkpoints(run_dir)[:-_KEEP]:
        shutil.rmtree(old)
    return folder


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return the complete checkpoint folders of a run, oldest first."""
    return sorted(
        path for path in (run_dir / CHECKPOINTS).glob("step-*") if path.suffix != ".partial"
    )


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read one checkpoint folder; raises InvalidCheckpoint when a file is missing."""
    missing = [
        name
        for name in (STATE, *(f"{group}.safetensors" for group in GROUPS))
        if not (folder / name).is_file()
    ]
    if missing:
        raise InvalidCheckpoint(
            f"{str(folder)!r} lacks {missing!r}; expected a folder that a training run wrote; "
            "delete it to resume from the one before"
        )
    return Checkpoint(
        state=RunState(**json.loads((folder / STATE).read_text())),
        tensors={group: load_file(folder / f"{group}.safetensors") for group in GROUPS},
    )
