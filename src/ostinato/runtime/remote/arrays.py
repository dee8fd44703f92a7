"""Arrays to bytes and back: dense values of torch and numpy, by dtype and shape.

What comes from a peer is checked before it is read: dtype, dimensions, and that all of the bytes
lie within the block. What is handed out is always a copy, so the block goes back at once.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.errors import InvalidMessage
from ostinato.runtime.remote.messages import ArrayRef

Array = torch.Tensor | np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Bytes = NDArray[np.uint8]

INLINE_BYTES = 4096
_ALIGN_BYTES = 64
_MAX_DIMENSIONS = 16
_NUMPY = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_NUMPY_DTYPES = frozenset((*_NUMPY, "float16", "float32", "float64"))
_TORCH_DTYPES = frozenset((*_NUMPY_DTYPES, "bfloat16"))


def flat(array: Array) -> tuple[ArrayRef, Bytes]:
    """Return what an array is and its bytes; raises InvalidMessage for one that cannot travel.

    A tensor on another device is fetched; gradients stay behind.
    """
    if isinstance(array, torch.Tensor):
        name = str(array.dtype).removeprefix("torch.")
        if name not in _TORCH_DTYPES or array.layout is not torch.strided or array.is_meta:
            raise _refused(f"a tensor of {array.dtype}, {array.layout}, on {array.device}")
        dense = array.detach().cpu().resolve_neg().contiguous()
        return ArrayRef(kind="torch", dtype=name, shape=tuple(array.shape)), _bytes_of(dense)
    if array.dtype.name not in _NUMPY_DTYPES or not array.dtype.isnative:
        raise _refused(f"an array of {array.dtype}")
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return ArrayRef(kind="numpy", dtype=array.dtype.name, shape=array.shape), data


def offsets(parts: Sequence[Bytes]) -> tuple[list[int], int]:
    """Return where each of some arrays begins in a block, and how many bytes they take."""
    found: list[int] = []
    end = 0
    for part in parts:
        found.append(end)
        end += -(-len(part) // _ALIGN_BYTES) * _ALIGN_BYTES
    return found, end


def restored(ref: ArrayRef, block: mmap.mmap | None) -> Array:
    """Return a copy of the array that a reference describes; raises InvalidMessage."""
    size = _size_bytes(ref)
    source = ref.data if ref.data is not None else block
    if source is None:
        raise InvalidMessage("an array without data came in a message without a block")
    start = 0 if ref.data is not None else ref.offset
    length = len(source)
    if start < 0 or start + size > length or (ref.data is not None and length != size):
        raise InvalidMessage(
            f"an array of {ref.dtype} {list(ref.shape)} takes {size} bytes from {start}, but there "
            f"are {length}"
        )
    found = np.frombuffer(source, np.uint8, size, start) if size else np.empty(0, np.uint8)
    if ref.kind == "numpy":
        array = np.empty(ref.shape, ref.dtype)
        array.reshape(-1).view(np.uint8)[:] = found
        return array
    tensor = torch.empty(ref.shape, dtype=_torch_dtype(ref.dtype))
    _bytes_of(tensor)[:] = found
    return tensor


def _bytes_of(dense: torch.Tensor) -> Bytes:
    """Return the memory of a contiguous tensor; one without elements may have no usable stride."""
    if dense.numel() == 0:
        return np.empty(0, np.uint8)
    return cast("Bytes", dense.reshape(-1).view(torch.uint8).numpy())


def _size_bytes(ref: ArrayRef) -> int:
    known = _NUMPY_DTYPES if ref.kind == "numpy" else _TORCH_DTYPES
    if ref.dtype not in known:
        raise InvalidMessage(f"an array has dtype {ref.dtype!r}; expected one of {sorted(known)}")
    if len(ref.shape) > _MAX_DIMENSIONS or any(size < 0 for size in ref.shape):
        raise InvalidMessage(f"an array has shape {list(ref.shape)}")
    return math.prod(ref.shape) * _torch_dtype(ref.dtype).itemsize


def _torch_dtype(name: str) -> torch.dtype:
    return cast("torch.dtype", getattr(torch, name))


def _refused(found: str) -> InvalidMessage:
    return InvalidMessage(
        f"{found} cannot be sent to another process; expected dense values of one of "
        f"{', '.join(sorted(_TORCH_DTYPES))}"
    )
