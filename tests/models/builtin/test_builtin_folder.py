"""A built-in folder and its components: what is refused, and what loading gives."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from ostinato.backend.alignment import is_aligned
from ostinato.card import PrecisionSpec
from ostinato.errors import InvalidCard, InvalidCheckpoint
from ostinato.models.builtin.card import open_builtin
from ostinato.models.builtin.codec import PatchCodec
from ostinato.models.builtin.components import (
    BuiltinCodec,
    BuiltinTextEncoder,
    BuiltinTransformer,
)
from ostinato.models.builtin.layout import (
    CODEC,
    FILES,
    PROVENANCE,
    TEXT_ENCODER,
    TRANSFORMER,
    WEIGHTS_FOLDER,
    load_modules,
    load_transformer,
)

ADAPTERS = {
    TEXT_ENCODER: BuiltinTextEncoder,
    TRANSFORMER: BuiltinTransformer,
    CODEC: BuiltinCodec,
}
FLOAT32 = PrecisionSpec(weights="float32", latents="float32")


@pytest.fixture
def folder(tiny_builtin_folder: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(tiny_builtin_folder, tmp_path / "builtin"))


def write_digests(folder: Path, *paths: str) -> None:
    """Let a folder's provenance list these files as they are, as a careless exporter would."""
    digests = {p: hashlib.sha256((folder / p).read_bytes()).hexdigest() for p in paths}
    (folder / PROVENANCE).write_text(json.dumps({"seed": 0, "sha256": digests}))


def edit(folder: Path, name: str, change: Callable[[dict[str, object]], object]) -> None:
    config = json.loads((folder / name).read_text())
    change(config)
    (folder / name).write_text(json.dumps(config))
    write_digests(folder, *FILES)


@pytest.mark.parametrize("unlisted", FILES)
def test_a_file_without_a_digest_is_refused(folder: Path, unlisted: str) -> None:
    write_digests(folder, *(path for path in FILES if path != unlisted))
    with pytest.raises(InvalidCheckpoint, match=f"lists no digest for {unlisted}"):
        open_builtin(folder)


def test_a_provenance_of_one_file_is_refused(folder: Path) -> None:
    write_digests(folder, "model_index.json")
    with pytest.raises(InvalidCheckpoint, match=r"digest for codec/config.json, codec/mod"):
        open_builtin(folder)


def test_a_stray_file_that_a_library_would_find_is_refused(folder: Path) -> None:
    (folder / "tokenizer" / "added_tokens.json").write_text("{}")
    with pytest.raises(InvalidCheckpoint, match=r"digest for tokenizer/added_tokens.json"):
        open_builtin(folder)


def test_a_digest_of_a_file_elsewhere_is_refused(folder: Path) -> None:
    write_digests(folder, *FILES, f"../{folder.name}/model_index.json")
    with pytest.raises(InvalidCheckpoint, match="outside its folder"):
        open_builtin(folder)


def test_the_shipped_folder_holds_the_files_that_are_read() -> None:
    files = {p.relative_to(WEIGHTS_FOLDER).as_posix() for p in WEIGHTS_FOLDER.rglob("*.*")}
    assert files == {*FILES, PROVENANCE, "goldens.json"}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("codec/config.json", lambda c: c.update(surplus=1)),
        ("codec/config.json", lambda c: c.pop("num_layers")),
        ("codec/config.json", lambda c: c.update(patch_size=0)),
        ("codec/config.json", lambda c: c.update(patch_size="8")),
        ("codec/config.json", lambda c: c.update(patch_size=True)),
        ("codec/config.json", lambda c: c.update(hidden_channels=10**9)),
        ("transformer/config.json", lambda c: c.update(patch_size="8")),
        ("transformer/config.json", lambda c: c.update(patch_size=[1, 2])),
        ("transformer/config.json", lambda c: c.update(patch_size=[1, 0, 2])),
        ("transformer/config.json", lambda c: c.pop("patch_size")),
        ("transformer/config.json", lambda c: c.update(in_channels="16")),
        ("transformer/config.json", lambda c: c.update(in_channels=-1)),
        ("tokenizer/tokenizer.json", lambda c: c.clear()),
        ("tokenizer/tokenizer.json", lambda c: c.update(model=None)),
        ("tokenizer/tokenizer_config.json", lambda c: c.update(unk_token="a")),
    ],
)
def test_a_malformed_configuration_is_refused_at_opening(
    folder: Path, name: str, change: Callable[[dict[str, object]], object]
) -> None:
    edit(folder, name, change)
    with pytest.raises(InvalidCheckpoint, match=name.partition("/")[0]):
        open_builtin(folder)


@pytest.mark.parametrize("name", ["transformer/config.json", "text_encoder/config.json"])
def test_a_network_that_does_not_fit_its_weights_is_refused(folder: Path, name: str) -> None:
    edit(folder, name, lambda config: config.update(num_layers=3))
    with pytest.raises(InvalidCheckpoint, match="do not match"):
        load_modules(folder)


@pytest.mark.parametrize("component", ADAPTERS)
@pytest.mark.parametrize("field", ["weights", "latents"])
def test_another_precision_is_refused_before_a_file_is_read(component: str, field: str) -> None:
    spec = open_builtin(WEIGHTS_FOLDER).card.component(component)
    precision = PrecisionSpec(**{"weights": "float32", "latents": "float32", field: "bfloat16"})
    with pytest.raises(InvalidCard, match="float32 only"):
        ADAPTERS[component].load(Path("no-such-folder"), spec, precision)


@pytest.mark.parametrize("component", ADAPTERS)
def test_the_subfolder_is_the_cards(folder: Path, component: str) -> None:
    spec = open_builtin(folder).card.component(component)
    moved = dataclasses.replace(spec, subfolder="elsewhere")
    (folder / component).rename(folder / "elsewhere")
    ADAPTERS[component].read_facts(folder, moved)
    ADAPTERS[component].load(folder, moved, FLOAT32)
    with pytest.raises(InvalidCheckpoint):
        ADAPTERS[component].load(folder, spec, FLOAT32)


def test_loaded_weights_are_aligned(tiny_builtin_folder: Path) -> None:
    modules = load_modules(tiny_builtin_folder)
    for module in (modules.transformer, modules.text_encoder, modules.codec):
        assert all(is_aligned(t) for t in (*module.parameters(), *module.buffers()))
        assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_weights_that_an_allocator_left_askew_are_aligned(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = WanTransformer3DModel.from_config

    def build_askew(config: dict[str, object]) -> WanTransformer3DModel:
        transformer = build(config)
        assert isinstance(transformer, WanTransformer3DModel)
        for parameter in transformer.parameters():
            storage = torch.empty(parameter.numel() + 1)
            parameter.data = storage[1:].view(parameter.shape).copy_(parameter.data)
        assert not any(is_aligned(p) for p in transformer.parameters())
        return transformer

    monkeypatch.setattr(WanTransformer3DModel, "from_config", build_askew)
    transformer = load_transformer(tiny_builtin_folder / TRANSFORMER)
    assert all(is_aligned(p) for p in transformer.parameters())


def test_pixels_are_rounded_not_cut() -> None:
    codec = PatchCodec().eval().requires_grad_(False)
    codec.patch_mean.fill_(0.3 / 127.5)  # 127.8 of 255
    frames = BuiltinCodec(codec).decode(torch.zeros(1, 16, 1, 8, 8))["frames"]
    assert isinstance(frames, np.ndarray)
    assert set(frames.flat) == {128}
