"""Look at a checkpoint's files before any weight is loaded.

Only safetensors is read: its header says every tensor's name, dtype, shape and place, so a
truncated or foreign file is found without reading data, and no code can run from it.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

from ostinato.errors import InvalidCheckpoint, UnsafeCheckpoint

# A header larger than this is not a header; the format's own limit.
_MAX_HEADER_BYTES = 100_000_000
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Bytes per element: https://huggingface.co/docs/safetensors, "Format".
_DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2}
    | {"BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
)
_WEIGHT_DTYPES = ("F32", "F16", "BF16", "F64")
_MAX_SIZE = 2**63 - 1
_LISTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor of a safetensors file: dtype by the format's name (`F32`, `BF16`...)."""

    dtype: str
    shape: tuple[int, ...]


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


def read_header(path: Path) -> Mapping[str, TensorHeader]:
    """Parse one file's header and hold the file's size against it; raises InvalidCheckpoint."""
    try:
        size, raw = _raw_header(path)
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error}") from error
    try:
        entries = json.loads(raw, object_pairs_hook=_unique, parse_constant=_no_constant)
        if not isinstance(entries, dict):
            raise ValueError(f"it is a {type(entries).__name__}, expected an object")
        placed = {
            name: _placed(name, entry)
            for name, entry in cast("dict[str, object]", entries).items()
            if name != "__metadata__"
        }
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{path} has no readable safetensors header: {error}") from error
    _require_packed(path, placed)
    end = max((tensor.end for tensor in placed.values()), default=0)
    if size != 8 + len(raw) + end:
        raise InvalidCheckpoint(
            f"{path} is truncated or damaged: {size} bytes, its header describes "
            f"{8 + len(raw) + end}; download or copy it again"
        )
    return {name: tensor.header for name, tensor in placed.items()}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A tensor and where its data lie, in bytes after the header."""

    header: TensorHeader
    begin: int
    end: int


def _raw_header(path: Path) -> tuple[int, bytes]:
    """Return the file's size and the header's bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise InvalidCheckpoint(f"{path} has {size} bytes; it is truncated or empty")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(_MAX_HEADER_BYTES, size - 8):
            raise InvalidCheckpoint(
                f"{path} is truncated or no safetensors file: its header claims {length} bytes "
                f"of a file of {size}"
            )
        return size, file.read(length)


def _placed(name: str, entry: object) -> _Placed:
    """Read one entry of a header; raises ValueError."""
    fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    dtype, shape = fields.get("dtype"), _sizes(fields.get("shape"))
    offsets = _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise ValueError(f"tensor {name[:80]!r} lacks a dtype, a shape or two data offsets")
    return _Placed(header=TensorHeader(dtype=dtype, shape=shape), begin=offsets[0], end=offsets[1])


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return a list of 63-bit whole numbers as a tuple, None for anything else."""
    if not isinstance(value, list):
        return None
    items = cast("list[object]", value)
    sizes = tuple(n for n in items if type(n) is int and 0 <= n <= _MAX_SIZE)
    return sizes if len(sizes) == len(items) else None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _require_packed(path: Path, placed: Mapping[str, _Placed]) -> None:
    """Hold each tensor's place against its shape; the format allows neither holes nor overlap."""
    for name, tensor in placed.items():
        width, length = _DTYPE_BYTES.get(tensor.header.dtype), tensor.end - tensor.begin
        if width is None or length != width * math.prod(tensor.header.shape):
            raise InvalidCheckpoint(
                f"{path}: tensor {name!r}, {tensor.header.dtype} {list(tensor.header.shape)}, has "
                f"{length} bytes; the file is damaged or its dtype is unknown"
            )
    end = 0
    for begin, after in sorted((tensor.begin, tensor.end) for tensor in placed.values()):
        if begin != end:
            raise InvalidCheckpoint(f"{path} is damaged: its data has a hole or overlap at {end}")
        end = after


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
