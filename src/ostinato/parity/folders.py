"""Where the weights of a model's components lie, and by which name they are looked for.

Invariant: the name is the one that the component itself reads. A folder may hold other variants of
the same weights beside those that are served, and they are none of its business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ostinato.backend.importing import load_object
from ostinato.card import ComponentSpec, ModelSource


@runtime_checkable
class NamesStem(Protocol):
    """An adapter that reads `<STEM>.safetensors` or its shards, and no other file."""

    STEM: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFolder:
    """The weights of one component. stem: the name of its files, None for the only ones there."""

    name: str
    path: Path
    stem: str | None


def weight_folders(source: ModelSource) -> tuple[WeightFolder, ...]:
    """Return the folder of each component that has ops, and so may have weights."""
    return tuple(
        WeightFolder(name=spec.name, path=source.folder / spec.subfolder, stem=_stem(spec))
        for spec in source.card.components
        if spec.ops
    )


def _stem(spec: ComponentSpec) -> str | None:
    adapter = load_object(spec.adapter)
    return adapter.STEM if isinstance(adapter, NamesStem) else None
