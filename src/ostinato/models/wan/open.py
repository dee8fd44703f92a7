"""Open a Wan 2.1 text-to-video folder: everything is checked, nothing is loaded."""

from __future__ import annotations

from pathlib import Path

from ostinato.card import ModelSource
from ostinato.models.wan.card import wan_card
from ostinato.models.wan.layout import inspect_folder


def open_wan(folder: Path) -> ModelSource:
    """Check a diffusers-layout folder and describe it.

    Weights are checked by their headers: every tensor that the configured classes declare, no
    other, each with its shape, in whole safetensors files. Raises InvalidCheckpoint,
    UnsafeCheckpoint for pickle weights, InvalidCard for sizes that cannot be served.
    """
    folder = folder.resolve()
    return ModelSource(card=wan_card(_model_id(folder), inspect_folder(folder)), folder=folder)


def _model_id(folder: Path) -> str:
    """Name a model after its folder, or after its repository in the hub's cache.

    The hub keeps `models--owner--name/snapshots/<commit>`, and a commit is no name.
    """
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name
