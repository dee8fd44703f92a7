"""Starts a run from the exported weights of another one, and records which."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from ostinato.backend.checkpoint import read_config
from ostinato.errors import BadInput, RecipeMismatch
from ostinato.models.builtin.layout import PROVENANCE, BuiltinModules
from ostinato.training.config import TrainingConfig
from ostinato.training.flow_model import FlowModel

PARENT_FILE = "parent.json"  # in the folder of a run


def open_parent(config: TrainingConfig, folder: Path | str | None) -> Path | None:
    """Return the folder of the parent's weights, None for a run without one.

    Raises BadInput when a folder is missing or not asked for, RecipeMismatch when the weights in
    it were not made by the parent recipe.
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
    made_by = read_config(Path(folder), PROVENANCE).get("command")
    expected = f"ostinato train {config.parent}"
    if made_by != expected:
        raise RecipeMismatch(
            f"the weights in {str(folder)!r} were made by {made_by!r}; {config.name!r} starts "
            f"from those of {expected!r}"
        )
    return Path(folder)


def record_parent(run_dir: Path, parent: Path) -> None:
    """Write where the run started: the parent's provenance and its digest.

    Raises RecipeMismatch when the run in this folder started from other weights.
    """
    content = (parent / PROVENANCE).read_bytes()
    provenance = json.loads(content)
    lineage = {
        "sha256_of_provenance": hashlib.sha256(content).hexdigest(),
        "sha256_of_files": provenance.pop("sha256"),
        **provenance,
    }
    file = run_dir / PARENT_FILE
    if file.exists() and json.loads(file.read_text()) != lineage:
        raise RecipeMismatch(
            f"the run in {str(run_dir)!r} started from other weights than those in "
            f"{str(parent)!r}; pass the same parent, or choose an empty folder"
        )
    file.write_text(json.dumps(lineage, indent=2) + "\n")


def read_parent(run_dir: Path) -> Mapping[str, object] | None:
    """Return what `record_parent` wrote, None for a run from nothing."""
    file = run_dir / PARENT_FILE
    return json.loads(file.read_text()) if file.exists() else None


@torch.no_grad()
def adopt(model: FlowModel, parent: BuiltinModules) -> None:
    """Copy the parent's weights into a model of the same sizes."""
    model.transformer.load_state_dict(parent.transformer.state_dict())
    model.text_encoder.load_state_dict(parent.text_encoder.state_dict())
