"""Headers of safetensors files, sound and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ostinato.backend.checkpoint import (
    TensorHeader,
    read_config,
    read_header,
    read_headers,
    require_tensors,
)
from ostinato.errors import InvalidCheckpoint, UnsafeCheckpoint


def save(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def write_header(path: Path, entries: object, data_bytes: int) -> Path:
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * data_bytes)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_header_says_names_dtypes_and_shapes(tmp_path: Path) -> None:
    path = save(
        tmp_path / "model.safetensors",
        weight=torch.zeros(3, 5, dtype=torch.bfloat16),
        scale=torch.zeros(()),
        empty=torch.zeros(0, 4),
    )
    assert read_header(path) == {
        "weight": TensorHeader(dtype="BF16", shape=(3, 5)),
        "scale": TensorHeader(dtype="F32", shape=()),
        "empty": TensorHeader(dtype="F32", shape=(0, 4)),
    }
    assert read_headers(tmp_path) == read_headers(tmp_path, "model") == read_header(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=1))
def test_every_truncation_is_found(tmp_path: Path, cut: int) -> None:
    path = save(tmp_path / "model.safetensors", weight=torch.ones(4, 4), bias=torch.ones(4))
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(InvalidCheckpoint):
        read_header(path)


@pytest.mark.parametrize(
    ("entries", "data_bytes", "word"),
    [
        ([1, 2], 0, "no readable safetensors header"),
        ({"a": {"dtype": "F32"}}, 0, "no readable safetensors header"),
        ({"a": entry("F32", [2], 0, 4)}, 4, "has 4 bytes"),
        ({"a": entry("F77", [2], 0, 8)}, 8, "dtype is unknown"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, 12, "hole or overlap"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, 4, "hole or overlap"),
        ({"a": entry("F32", [1], 0, 4)}, 8, "truncated or damaged"),
    ],
)
def test_inconsistent_headers_are_refused(
    tmp_path: Path, entries: object, data_bytes: int, word: str
) -> None:
    path = write_header(tmp_path / "model.safetensors", entries, data_bytes)
    with pytest.raises(InvalidCheckpoint, match=word):
        read_header(path)


def placed(**changes: object) -> dict[str, object]:
    return {"a": entry("F32", [1], 0, 4) | changes}


@pytest.mark.parametrize(
    "header",
    [
        json.dumps(placed(data_offsets=[0])),
        json.dumps(placed(data_offsets=[0, 4, 9])),
        json.dumps(placed(data_offsets=[0.0, 4.7])),
        json.dumps(placed(data_offsets=[-4, 0])),
        json.dumps(placed(data_offsets=[0, 4 + 2**63])),
        json.dumps(placed(data_offsets="04")),
        json.dumps(placed(shape=[-1, -1])),
        json.dumps(placed(shape=[True])),
        json.dumps(placed(shape=[1.0])),
        json.dumps(placed(shape="1")),
        json.dumps(placed(shape=None)),
        json.dumps(placed(dtype=32)),
        json.dumps(placed(data_offsets=[0, float("inf")])),
        json.dumps(placed(shape=[float("nan")])),
        json.dumps({"a": [1]}),
        '{"a": {}, "a": {}}',
        "[" * 200_000,
        '{"a": ' + "9" * 5000 + "}",
        "null",
    ],
    ids=lambda header: header[:60],
)
def test_a_header_of_wrong_types_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 4)
    with pytest.raises(InvalidCheckpoint, match="no readable safetensors header"):
        read_header(path)


@pytest.mark.parametrize("beyond", range(1, 9))
def test_a_header_ends_within_its_file(tmp_path: Path, beyond: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2 + beyond) + b"{}")
    with pytest.raises(InvalidCheckpoint, match=f"claims {2 + beyond} bytes of a file of 10"):
        read_header(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        read_headers(tmp_path)


def test_another_format_under_this_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"PK\x03\x04" + b"\xff" * 64)
    with pytest.raises(InvalidCheckpoint, match="no safetensors file"):
        read_header(path)


def sharded(folder: Path) -> Path:
    save(folder / "model-1.safetensors", a=torch.zeros(2))
    save(folder / "model-2.safetensors", b=torch.zeros(3))
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    save(tmp_path / "unrelated.safetensors", c=torch.zeros(1))
    assert set(read_headers(tmp_path, "model")) == {"a", "b"}


def test_an_index_is_held_against_its_shards(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "c": "gone"}}))
    with pytest.raises(InvalidCheckpoint, match="lacks shards that its index names: gone"):
        read_headers(tmp_path)
    index.write_text(json.dumps({"weight_map": {"c": "model-1.safetensors"}}))
    with pytest.raises(InvalidCheckpoint, match="disagree about tensors a, c"):
        read_headers(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../model-1.safetensors"}}))
    with pytest.raises(InvalidCheckpoint, match="lacks shards"):
        read_headers(tmp_path)
    index.write_text("{}")
    with pytest.raises(InvalidCheckpoint, match="no weight_map"):
        read_headers(tmp_path)


def test_ambiguous_folders_are_refused(tmp_path: Path) -> None:
    sharded(tmp_path)
    save(tmp_path / "model.safetensors", a=torch.zeros(2))
    with pytest.raises(InvalidCheckpoint, match="stale"):
        read_headers(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(InvalidCheckpoint, match="several weight files"):
        read_headers(tmp_path)
    assert set(read_headers(tmp_path, "model")) == {"a"}


def test_pickle_is_never_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="is missing"):
        read_headers(tmp_path / "nowhere")
    with pytest.raises(InvalidCheckpoint, match=r"no \*\.safetensors"):
        read_headers(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsafeCheckpoint, match=r"pytorch_model\.bin"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '"x"', "[" * 200_000, '{"a": ' + "9" * 5000 + "}"],
    ids=lambda text: text[:9],
)
def test_a_configuration_must_be_a_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidCheckpoint, match=r"config\.json"):
        read_config(tmp_path)


def test_tensors_are_held_against_what_is_declared(tmp_path: Path) -> None:
    found = {
        "a": TensorHeader(dtype="F32", shape=(2,)),
        "packed": TensorHeader(dtype="I8", shape=(2,)),
        "extra.skip": TensorHeader(dtype="F32", shape=(1,)),
    }
    declared = {"a": (2,), "packed": (2,), "tied": (9,)}
    with pytest.raises(InvalidCheckpoint) as caught:
        require_tensors(tmp_path, found, declared | {"a": (3,)})
    for word in ("missing: tied", "unexpected: extra.skip", "a is [2], expected [3]", "is I8"):
        assert word in str(caught.value)
    del found["packed"], declared["packed"]
    require_tensors(tmp_path, found, declared, optional=("tied",), ignored=(r"\.skip$",))


def test_long_lists_are_cut(tmp_path: Path) -> None:
    declared = {f"layer.{index:03d}": (1,) for index in range(200)}
    with pytest.raises(InvalidCheckpoint, match=r"layer\.004 and 195 more"):
        require_tensors(tmp_path, {}, declared)
