"""Reading weights and settings, position buckets, and what a reference component offers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import UMT5Config
from transformers.models.umt5.modeling_umt5 import UMT5Attention

from ostinato.backend.reference.component import ReferenceComponent, to_array, to_tensor
from ostinato.backend.reference.settings import Settings
from ostinato.backend.reference.umt5 import position_buckets, read_umt5
from ostinato.backend.reference.wan_weights import read_wan
from ostinato.backend.reference.weights import WeightReader
from ostinato.card import ComponentSpec
from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.layout import TRANSFORMER

STEM = "model"


def write(folder: Path, **tensors: torch.Tensor) -> WeightReader:
    save_file(dict(tensors), folder / f"{STEM}.safetensors")
    return WeightReader(folder, STEM)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_are_upcast_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = torch.tensor([[1.0, -0.3], [2.5, 1e-3]]).to(dtype)
    reader = write(tmp_path, w=stored)
    found = reader.take("w", 2, 2)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, stored.double().numpy())
    reader.finish()


def test_weights_are_accounted_for(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.ones(3, 2), "a.bias": torch.ones(3), "extra.b": torch.ones(1)}
    reader = write(tmp_path, **tensors)
    with pytest.raises(InvalidCheckpoint, match=r"'a.weight' .* is \[3, 2\]; .* needs \[2, 2\]"):
        reader.take("a.weight", 2, 2)
    reader = WeightReader(tmp_path, STEM)
    affine = reader.affine("a", 3, 2)
    assert affine.weight.shape == (3, 2)
    assert affine.bias is not None
    with pytest.raises(InvalidCheckpoint, match=r"lack 'a.weight'"):
        reader.take("a.weight", 3, 2)
    with pytest.raises(InvalidCheckpoint, match=r"hold 1 tensors .*\['extra.b'\]"):
        reader.finish()
    reader.finish(r"extra\.")


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    names = [f"{STEM}-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for value, name in enumerate(names):
        save_file({f"w{value}": torch.full((1,), float(value))}, tmp_path / name)
    index = {"weight_map": {f"w{value}": name for value, name in enumerate(names)}}
    (tmp_path / f"{STEM}.safetensors.index.json").write_text(json.dumps(index))
    reader = WeightReader(tmp_path, STEM)
    assert [reader.take(f"w{value}", 1).item() for value in (0, 1)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("getter", "value"),
    [
        ("whole", 0),
        ("whole", True),
        ("whole", 1.5),
        ("number", -1),
        ("number", "1"),
        ("flag", 1),
        ("wholes", [1, 0]),
        ("wholes", 3),
        ("numbers", ["1"]),
        ("numbers", []),
        ("flags", [1]),
    ],
)
def test_settings_of_another_type_are_refused_by_name(
    tmp_path: Path, getter: str, value: object
) -> None:
    settings = read_settings(tmp_path, size=value)
    with pytest.raises(InvalidCheckpoint, match=r"size is .*, expected"):
        getattr(settings, getter)("size")


def test_settings(tmp_path: Path) -> None:
    given = {"n": 3, "x": 1e-6, "on": True, "sizes": [1, 2], "values": [-1.0, 2], "none": None}
    settings = read_settings(tmp_path, **given)
    assert (settings.whole("n"), settings.number("x"), settings.flag("on")) == (3, 1e-6, True)
    assert (settings.wholes("sizes"), settings.numbers("values")) == ((1, 2), (-1.0, 2.0))
    assert [settings.states(name) for name in ("n", "none", "absent")] == [True, False, False]
    settings.require("none", None)
    settings.require("absent", False)
    with pytest.raises(InvalidCheckpoint, match="n is 3, expected 4"):
        settings.require("n", 4)
    with pytest.raises(InvalidCheckpoint, match="absent is None, expected a whole number"):
        settings.whole("absent")


def read_settings(folder: Path, **given: object) -> Settings:
    (folder / "config.json").write_text(json.dumps(given))
    return Settings(folder)


@pytest.mark.parametrize(
    ("name", "value"), [("image_dim", 1280), ("patch_size", [2, 2, 2]), ("added_kv_proj_dim", 64)]
)
def test_a_transformer_that_is_not_computed_is_refused(
    tiny_builtin_folder: Path, tmp_path: Path, name: str, value: object
) -> None:
    config = json.loads((tiny_builtin_folder / TRANSFORMER / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(InvalidCheckpoint, match=f"{name} is .*computes nothing else"):
        read_wan(tmp_path)


def test_an_encoder_that_is_not_computed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"feed_forward_proj": "relu"}))
    with pytest.raises(InvalidCheckpoint, match="feed_forward_proj is 'relu'"):
        read_umt5(tmp_path)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 40)])
def test_position_buckets_are_the_librarys(num_buckets: int, max_distance: int) -> None:
    """The library divides in float32, where a boundary could fall on the other side."""
    config = UMT5Config(
        d_model=8,
        d_kv=4,
        num_heads=2,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
    )
    attention = UMT5Attention(config, has_relative_attention_bias=True)
    distances = np.arange(-1000, 1001)
    expected = attention._relative_position_bucket(torch.from_numpy(distances))
    found = position_buckets(distances, num_buckets, max_distance)
    np.testing.assert_array_equal(found, expected.numpy())
    # Zero and both neighbours have buckets of their own; the far ends share one a side.
    near = position_buckets(np.array([0, -1, 1, -9999, 9999]), num_buckets, max_distance)
    half = num_buckets // 2
    assert near.tolist() == [0, 1, half + 1, half - 1, num_buckets - 1]


class _Silent(ReferenceComponent):
    @classmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> _Silent:
        return cls()


def test_taps_nest_and_get_values_of_their_own() -> None:
    component, value = _Silent(), np.ones(2)
    outer: list[torch.Tensor] = []
    inner: list[torch.Tensor] = []
    component.emit("before", value)
    with component.observe(lambda _, tensor: outer.append(tensor)):
        with pytest.raises(ValueError, match="stop"), component.observe(_stop):
            component.emit("raises", value)
        with component.observe(lambda _, tensor: inner.append(tensor.zero_())):
            component.emit("both", value)
        component.emit("outer", value)
    component.emit("after", value)
    assert [tensor.tolist() for tensor in outer] == [[1.0, 1.0]] * 3
    assert len(inner) == 1
    assert value.tolist() == [1.0, 1.0]


def _stop(name: str, value: torch.Tensor) -> None:
    raise ValueError("stop")


def test_edges_convert_exactly() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.int64):
        tensor = torch.tensor([1, 3, 7]).to(dtype)
        array = to_array(tensor)
        assert array.dtype == np.float64
        assert array.tolist() == [1.0, 3.0, 7.0]
    turned = to_tensor(np.arange(6.0).reshape(2, 3).T)
    assert turned.dtype == torch.float64
    assert turned.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
