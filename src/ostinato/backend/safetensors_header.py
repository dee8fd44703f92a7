"""Read a safetensors header as strictly as the format is written; no data is read.

Source of the format: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

from ostinato.errors import InvalidCheckpoint

# A header larger than this is not a header; the format's own limit.
_MAX_HEADER_BYTES = 100_000_000
# Bytes per element: https://huggingface.co/docs/safetensors, "Format".
_DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2}
    | {"BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
)
_MAX_SIZE = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor of a safetensors file: dtype by the format's name (`F32`, `BF16`...)."""

    dtype: str
    shape: tuple[int, ...]


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
