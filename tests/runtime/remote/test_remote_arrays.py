"""Arrays between processes: every dtype and shape comes back equal, and a lie is an error."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import InvalidMessage
from ostinato.runtime.remote.arrays import Array, flat, offsets, restored
from ostinato.runtime.remote.messages import ArrayRef

NUMPY = ("bool", "uint8", "int8", "uint16", "int16", "int32", "uint64", "int64", "float16")
DTYPES = [("numpy", name) for name in (*NUMPY, "float32", "float64")]
DTYPES += [("torch", name) for name in (*NUMPY, "float32", "float64", "bfloat16")]
SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)


def made(kind: str, dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Return random bytes as an array; a bool is 0 or 1."""
    wide = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    size = int(np.prod(shape, dtype=int)) * wide
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    if kind == "numpy":
        return data.view(dtype).reshape(shape)
    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    if size:
        tensor.reshape(-1).view(torch.uint8)[:] = torch.from_numpy(data)
    return tensor


def same(one: Array, other: Array) -> bool:
    assert type(one) is type(other)
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    return flat(one)[1].tobytes() == flat(other)[1].tobytes()  # NaN included


def packed(array: Array, offset: int = 64) -> tuple[ArrayRef, mmap.mmap]:
    """Return a reference into a block that holds the array."""
    ref, data = flat(array)
    block = mmap.mmap(-1, 4096)
    block[offset : offset + len(data)] = data.tobytes()
    fields = {"kind": ref.kind, "dtype": ref.dtype, "shape": ref.shape}
    return ArrayRef(**fields, offset=offset), block  # type: ignore[arg-type]


@given(st.sampled_from(DTYPES), SHAPES, st.integers(0, 2**32))
def test_what_comes_back_is_equal(kind: tuple[str, str], shape: tuple[int, ...], seed: int) -> None:
    if int(np.prod(shape, dtype=int)) > 500:
        shape = shape[:3]
    array = made(*kind, shape, seed)
    ref, data = flat(array)
    inline = ArrayRef(kind=ref.kind, dtype=ref.dtype, shape=ref.shape, data=data.tobytes())
    assert same(restored(inline, None), array)
    assert same(restored(*packed(array)), array)


def test_a_copy_is_handed_out() -> None:
    ref, block = packed(np.arange(8, dtype=np.float32))
    found = restored(ref, block)
    block[:] = bytes(4096)
    assert found.tolist() == list(range(8))


def test_views_and_gradients_travel_as_their_values() -> None:
    base = torch.arange(24.0).reshape(4, 6).requires_grad_()
    ref, block = packed(base.t()[::2])
    found = restored(ref, block)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, base.detach().t()[::2])
    assert not found.requires_grad
    strided = np.arange(24)[::-3]
    assert restored(*packed(strided)).tolist() == strided.tolist()


@pytest.mark.parametrize(
    "array",
    [
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, device="meta"),
        np.array(["a"]),
        np.array([object()]),
        np.zeros(2, ">f4"),
        np.zeros(2, [("a", "f4")]),
    ],
    ids=str,
)
def test_what_cannot_travel_is_refused(array: Array) -> None:
    with pytest.raises(InvalidMessage, match="cannot be sent"):
        flat(array)


@pytest.mark.parametrize(
    "lie",
    [
        {"dtype": "object"},
        {"dtype": "bfloat16"},
        {"dtype": "float32; import os"},
        {"shape": (-1,)},
        {"shape": (-2, -4)},
        {"shape": (2**40,)},
        {"shape": (2**62, 2**62)},
        {"shape": (1,) * 17},
        {"shape": (1009,)},
        {"offset": -4},
        {"offset": 4096 - 31},
        {"offset": 2**63},
        {"data": b"1234"},
        {"data": b"1" * 64},
    ],
    ids=str,
)
def test_a_lie_is_a_typed_error(lie: dict[str, object]) -> None:
    truth = {"kind": "numpy", "dtype": "float32", "shape": (8,), "offset": 64}
    with pytest.raises(InvalidMessage):
        restored(ArrayRef(**{**truth, **lie}), mmap.mmap(-1, 4096))  # type: ignore[arg-type]


def test_an_array_without_data_needs_a_block() -> None:
    with pytest.raises(InvalidMessage, match="without a block"):
        restored(ArrayRef(kind="torch", dtype="uint8", shape=(1,)), None)


def test_arrays_in_a_block_do_not_overlap() -> None:
    starts, size = offsets([np.zeros(n, np.uint8) for n in (1, 64, 0, 65)])
    assert starts == [0, 64, 128, 128]
    assert size == 256
