"""What decides the bytes of an output: a model's card, and every file that it is read from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from ostinato.backend.checkpoint import weight_files
from ostinato.card import ModelCard, ModelSource
from ostinato.parity.folders import weight_folders
from ostinato.tasks import ModelId
from ostinato.wire import canonical

CARD = "card"
"""The name of the card among the sources."""

GOLDENS = "goldens.json"
"""The file in a model's folder that holds its goldens."""

_READ = (".json", ".safetensors", ".model", ".txt")
# What was kept of the outputs, and where the files came from, are no part of what gives them.
_SAYINGS = (GOLDENS, "provenance.json")
# Which release of a library wrote a configuration.
_STAMPS = ("_diffusers_version", "transformers_version")
_BLOCK_BYTES = 1 << 20


def digests(source: ModelSource) -> dict[str, str]:
    """Return the sha256, in hex, of the card and of each file below the folder, by its path.

    The card counts without its name, which is that of the folder, and without its list of files,
    which are here one by one. Weights count that a component reads, and no other variant beside
    them. A configuration counts by what it says, and not by which release of
    a library wrote it. Raises OSError for a file that cannot be read, InvalidCheckpoint for weights
    that are not whole.
    """
    found = {CARD: _card_sha256(source.card)}
    unread = _unread(source)
    for path in _files(source.folder):
        if path in unread:
            continue
        name = path.relative_to(source.folder).as_posix()
        found[name] = _said_sha256(path) if path.suffix == ".json" else sha256_of(path)
    return found


def changed(found: Mapping[str, str], kept: Mapping[str, str]) -> tuple[str, ...]:
    """Name each source that is another one than the one kept, is gone, or is new."""
    lost = [f"{name} is gone" for name in kept if name not in found]
    new = [f"{name} is new" for name in found if name not in kept]
    other = [f"{name} changed" for name in found if name in kept and found[name] != kept[name]]
    return (*other, *lost, *new)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hex; raises OSError where it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _unread(source: ModelSource) -> set[Path]:
    """Return weights, and lists of their shards, that lie beside those that a component reads."""
    unread: set[Path] = set()
    for each in weight_folders(source):
        if each.stem is None:
            continue  # the only ones there
        read = {
            *weight_files(each.path, each.stem),
            each.path / f"{each.stem}.safetensors.index.json",
        }
        unread |= set(each.path.glob("*.safetensors*")) - read
    return unread


def _files(folder: Path) -> Iterator[Path]:
    """Yield what a model may be read from, in order; the hub keeps its own in hidden folders."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        saying = len(parts) == 1 and path.name in _SAYINGS
        if path.suffix in _READ and path.is_file() and not hidden and not saying:
            yield path


def _card_sha256(card: ModelCard) -> str:
    counted = dataclasses.replace(card, model_id=ModelId(""), files=())
    return hashlib.sha256(canonical(counted)).hexdigest()


def _said_sha256(path: Path) -> str:
    data = path.read_bytes()
    try:
        said: object = json.loads(data)
    except ValueError:
        return hashlib.sha256(data).hexdigest()  # a file that no JSON reader takes
    if isinstance(said, dict):
        fields = cast("dict[str, object]", said)
        said = {name: value for name, value in fields.items() if name not in _STAMPS}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
