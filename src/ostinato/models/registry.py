"""Which model answers to a name: a built-in, a diffusers-layout folder, or a hub repository.

A family is one row; third parties add rows through the entry-point group `ostinato.models`, each
an object with the attributes of `Family`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from ostinato.backend.checkpoint import read_config
from ostinato.backend.importing import load_object
from ostinato.card import ModelSource
from ostinato.errors import InvalidCheckpoint, UnknownModel

ENTRY_POINT_GROUP = "ostinato.models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model family.

    pipelines: the `_class_name` values of model_index.json that it opens.
    builtin: the name under which a model of this family ships, None when it ships none.
    open: import string of `open(folder: Path) -> ModelSource`; for a shipped model the folder is
    the one that `folder` (an import string of `() -> Path`) names.
    tiny: import string of `write(folder: Path) -> Path`, which makes a small folder of the real
    classes that the family can be verified with; what it gives is kept beside that module, in
    `tiny-<name>.goldens.json`. measures: the family that this one is only the float64 reference
    of; it is then verified by that family's gates and not by itself.
    """

    name: str
    summary: str
    pipelines: tuple[str, ...]
    open: str
    builtin: str | None = None
    folder: str | None = None
    tiny: str | None = None
    measures: str | None = None


FAMILIES: tuple[Family, ...] = (
    Family(
        name="builtin",
        summary="text to video, 64x64, trained on a procedural world; ships with the package",
        pipelines=("OstinatoBuiltin",),
        open="ostinato.models.builtin.card:open_builtin",
        builtin="builtin",
        folder="ostinato.models.builtin.card:shipped_folder",
        tiny="ostinato.models.builtin.tiny:write_tiny_builtin",
    ),
    Family(
        name="builtin-reference",
        summary="the built-in model as the slow float64 reference: numpy, to measure the others by",
        pipelines=(),
        open="ostinato.models.builtin.reference:open_reference",
        builtin="builtin-reference",
        folder="ostinato.models.builtin.card:shipped_folder",
        measures="builtin",
    ),
    Family(
        name="wan",
        summary="Wan 2.1 text to video, diffusers layout",
        pipelines=("WanPipeline",),
        open="ostinato.models.wan.open:open_wan",
        tiny="ostinato.models.wan.tiny:write_tiny_wan",
    ),
)


def families() -> tuple[Family, ...]:
    """Return the families of this package and of installed plugins."""
    plugins = tuple(cast("Family", point.load()) for point in entry_points(group=ENTRY_POINT_GROUP))
    return FAMILIES + plugins


def ships(reference: str | Path) -> bool:
    """Tell whether a name is that of a model which comes with a family."""
    return any(f.builtin is not None and f.builtin == str(reference) for f in families())


def open_model(reference: str | Path) -> ModelSource:
    """Find a model and check its files; no weight is loaded.

    Raises UnknownModel when nothing answers to the name, InvalidCheckpoint, UnsafeCheckpoint or
    InvalidCard for a folder that cannot be served.
    """
    known = families()
    for family in known:
        if family.builtin is not None and family.builtin == str(reference):
            assert family.folder is not None
            shipped = cast("Callable[[], Path]", load_object(family.folder))
            return _open(family, shipped())
    folder = _expanded(Path(reference))
    if folder.exists():
        return _open_folder(folder, known)
    if _looks_like_hub_id(str(reference)):
        return _open_folder(_download(str(reference)), known)
    names = [family.builtin for family in known if family.builtin is not None]
    raise UnknownModel(
        f"no model {str(reference)!r}: not a built-in ({', '.join(names)}), not an existing "
        "folder, not a hub id such as 'owner/name'"
    )


def _expanded(path: Path) -> Path:
    """Resolve `~`; a user that does not exist leaves the path as it is, which then is no folder."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _open_folder(folder: Path, known: tuple[Family, ...]) -> ModelSource:
    if not folder.is_dir():
        raise InvalidCheckpoint(f"{folder} is a file; expected a diffusers-layout folder")
    pipeline = read_config(folder, "model_index.json").get("_class_name")
    for family in known:
        if pipeline in family.pipelines:
            return _open(family, folder)
    served = sorted(name for family in known for name in family.pipelines)
    raise UnknownModel(f"{folder} is a {pipeline!r}; served pipelines: {', '.join(served)}")


def _open(family: Family, folder: Path) -> ModelSource:
    opener = cast("Callable[[Path], ModelSource]", load_object(family.open))
    return opener(folder)


def _looks_like_hub_id(reference: str) -> bool:
    owner, _, name = reference.partition("/")
    return bool(owner and name) and "/" not in name and not reference.startswith(".")


def _download(repository: str) -> Path:
    """Fetch a repository's configuration, tokenizer and safetensors files into the hub cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UnknownModel(
            f"no folder {repository!r} here, and the hub did not deliver a repository of that "
            f"name: {error}"
        ) from error
