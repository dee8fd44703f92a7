"""Starts a run from the exported weights of another one, and records which.

Invariant: weights are named by the digests of their files, which are checked when they are opened;
a run's folder never holds what was made of two different parents.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ostinato.backend.checkpoint import read_config
from ostinato.errors import BadInput, RecipeMismatch
from ostinato.models.builtin.card import open_builtin
from ostinato.models.builtin.layout import PROVENANCE, BuiltinModules
from ostinato.training.config import TrainingConfig
from ostinato.training.flow_model import FlowModel

PARENT_FILE = "parent.json"  # in the folder of a run
_FILES = "sha256_of_files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Weights that a run starts from; digest: sha256 over the digests of all their files."""

    folder: Path
    digest: str


def open_parent(config: TrainingConfig, folder: Path | str | None) -> Parent | None:
    """Return the parent's weights, None for a run without one.

    Raises BadInput when a folder is missing or not asked for, RecipeMismatch when the weights in
    it were not made by the parent recipe, InvalidCheckpoint when a file is not the exported one.
    """
    if config.parent is None:
        if folder is not None:
            raise BadInput(f"{config.name!r} starts from nothing; leave out {str(folder)!r}")
        return None
    if folder is None:
        raise BadInput(
            f"{config.name!r} starts from the weights of {config.parent!r}; make them with "
            f"`ostinato train {config.parent} --export-to PATH`, then pass `--parent PATH`"
        )
    folder = Path(folder)
    provenance = read_config(folder, PROVENANCE)
    made_by, expected = provenance.get("command"), f"ostinato train {config.parent}"
    if made_by != expected:
        raise RecipeMismatch(
            f"the weights in {str(folder)!r} were made by {made_by!r}; {config.name!r} starts "
            f"from those of {expected!r}"
        )
    files = open_builtin(folder).card.files
    return Parent(folder=folder, digest=_digest({file.path: file.sha256 for file in files}))


def record_parent(run_dir: Path, parent: Parent | None) -> None:
    """Write where a run starts: the parent's provenance and the digests of its files.

    Raises RecipeMismatch when the run in this folder started from other weights, or from some
    while this one starts from none.
    """
    recorded = read_parent(run_dir)
    if recorded is not None and (parent is None or _digest(recorded[_FILES]) != parent.digest):
        asked = "none" if parent is None else f"those in {str(parent.folder)!r}"
        raise RecipeMismatch(
            f"the run in {str(run_dir)!r} started from other weights than {asked}; pass the same "
            "parent, or choose an empty folder"
        )
    if parent is None:
        return
    provenance = dict(read_config(parent.folder, PROVENANCE))
    lineage = {_FILES: provenance.pop("sha256"), **provenance}
    run_dir.mkdir(parents=True, exist_ok=True)
    partial = run_dir / f"{PARENT_FILE}.partial"
    partial.write_text(json.dumps(lineage, indent=2) + "\n")
    os.replace(partial, run_dir / PARENT_FILE)


def read_parent(run_dir: Path) -> Mapping[str, object] | None:
    """Return what `record_parent` wrote, None for a run from nothing."""
    return read_config(run_dir, PARENT_FILE) if (run_dir / PARENT_FILE).exists() else None


@torch.no_grad()
def adopt(model: FlowModel, parent: BuiltinModules) -> None:
    """Copy the parent's weights into a model of the same sizes."""
    model.transformer.load_state_dict(parent.transformer.state_dict())
    model.text_encoder.load_state_dict(parent.text_encoder.state_dict())


def _digest(files: object) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
