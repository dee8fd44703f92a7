"""Look at a checkpoint's files before any weight is loaded.

Only safetensors is read: its header says every tensor's name, dtype, shape and place, so a
truncated or foreign file is found without reading data, and no code can run from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from ostinato.backend.safetensors_header import TensorHeader, read_header
from ostinato.errors import InvalidCheckpoint, UnsafeCheckpoint

# What diffusers (utils.SAFETENSORS_WEIGHTS_NAME) and transformers (utils.SAFE_WEIGHTS_NAME) call
# weights, before `.safetensors` or the number of a shard.
DIFFUSERS_STEM, TRANSFORMERS_STEM = "diffusion_pytorch_model", "model"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_WEIGHT_DTYPES = ("F32", "F16", "BF16", "F64")
_LISTED = 5


def read_config(folder: Path, name: str = "config.json") -> Mapping[str, object]:
    """Read a component's JSON configuration; raises InvalidCheckpoint."""
    path = folder / name
    try:
        config: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidCheckpoint(
            f"{path} is missing; expected a diffusers-layout folder with this file"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise InvalidCheckpoint(f"{path} holds a {type(config).__name__}, expected a JSON object")
    return cast("dict[str, object]", config)


def read_headers(folder: Path, stem: str | None = None) -> Mapping[str, TensorHeader]:
    """Return every tensor of a component folder, from one file or from all shards of an index.

    stem: the name before `.safetensors` that the library looks for, None for the only one there.
    Raises UnsafeCheckpoint when there are only pickle files, InvalidCheckpoint when a file is
    missing, truncated, not safetensors or does not hold what the index says.
    """
    found: dict[str, TensorHeader] = {}
    if not folder.is_dir():
        raise InvalidCheckpoint(f"{folder} is missing; expected a folder with safetensors weights")
    index = _index_file(folder, stem)
    if index is None:
        return read_header(_single_file(folder, stem))
    for shard, names in _shards(folder, index).items():
        headers = read_header(folder / shard)
        wrong = sorted(names ^ set(headers))
        if wrong:
            raise InvalidCheckpoint(
                f"{folder / shard} and {index.name} disagree about tensors {_few(wrong)}"
            )
        found.update(headers)
    return found


def weight_files(folder: Path, stem: str | None = None) -> tuple[Path, ...]:
    """Return the files that `read_headers` reads, in order; raises as it does."""
    index = _index_file(folder, stem)
    if index is None:
        return (_single_file(folder, stem),)
    return tuple(folder / shard for shard in sorted(_shards(folder, index)))


def require_tensors(
    folder: Path,
    found: Mapping[str, TensorHeader],
    declared: Mapping[str, tuple[int, ...]],
    *,
    optional: Iterable[str] = (),
    ignored: Iterable[str] = (),
) -> None:
    """Hold a checkpoint's tensors against the names and shapes that its class declares.

    optional: declared names that may be absent because they are tied to others. ignored: patterns
    of surplus names that the library skips. Raises InvalidCheckpoint that lists the first few.
    """
    patterns = [re.compile(pattern) for pattern in ignored]
    missing = sorted(set(declared) - set(found) - set(optional))
    unexpected = sorted(
        name for name in set(found) - set(declared) if not any(p.search(name) for p in patterns)
    )
    wrong = [
        f"{name} is {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in declared.items()
        if name in found and found[name].shape != shape
    ]
    packed = sorted(
        f"{name} is {found[name].dtype}"
        for name in declared
        if name in found and found[name].dtype not in _WEIGHT_DTYPES
    )
    faults = {"missing": missing, "unexpected": unexpected, "wrong shape": wrong}
    faults["dtype outside " + "/".join(_WEIGHT_DTYPES)] = packed
    told = [f"{kind}: {_few(names)}" for kind, names in faults.items() if names]
    if told:
        raise InvalidCheckpoint(
            f"the weights in {folder} are not those that its configuration declares; "
            + "; ".join(told)
        )


def _index_file(folder: Path, stem: str | None) -> Path | None:
    indexes = sorted(folder.glob(f"{stem or '*'}.safetensors.index.json"))
    if len(indexes) > 1:
        raise InvalidCheckpoint(f"{folder} has several indexes: {[p.name for p in indexes]}")
    if not indexes:
        return None
    single = folder / indexes[0].name.removesuffix(".index.json")
    if single.is_file():
        raise InvalidCheckpoint(
            f"{folder} has both {single.name} and {indexes[0].name}; remove the one that is stale"
        )
    return indexes[0]


def _shards(folder: Path, index: Path) -> Mapping[str, set[str]]:
    """Return the tensor names of each shard file; every shard must exist."""
    weight_map = read_config(folder, index.name).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidCheckpoint(f"{index} has no weight_map")
    shards: dict[str, set[str]] = {}
    for name, shard in cast("dict[str, object]", weight_map).items():
        shards.setdefault(str(shard), set()).add(name)
    missing = sorted(n for n in shards if Path(n).name != n or not (folder / n).is_file())
    if missing:
        raise InvalidCheckpoint(f"{folder} lacks shards that its index names: {_few(missing)}")
    return shards


def _single_file(folder: Path, stem: str | None) -> Path:
    files = sorted(folder.glob(f"{stem or '*'}.safetensors"))
    if len(files) == 1:
        return files[0]
    present = sorted(path.name for path in folder.iterdir())
    if files:
        raise InvalidCheckpoint(f"{folder} has several weight files and no index: {present}")
    pickles = [name for name in present if name.endswith(_PICKLE_SUFFIXES)]
    if pickles:
        raise UnsafeCheckpoint(
            f"{folder} holds only pickle weights {pickles}, which can run code when read; "
            "convert them to safetensors first"
        )
    raise InvalidCheckpoint(
        f"{folder} holds no {stem or '*'}.safetensors and no index of shards; found {present}"
    )


def _few(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
