"""A model that can be made resident: its card and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostinato.card._card import ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A validated card and the folder below which its components' subfolders lie."""

    card: ModelCard
    folder: Path
