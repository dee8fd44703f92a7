"""Whatever decides an output has a digest of its own, and what does not decide it has none."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.card import ModelSource
from ostinato.models.wan.open import open_wan
from ostinato.parity.sources import CARD, changed, digests
from ostinato.tasks import ModelId


@pytest.fixture
def source(tiny_wan_folder: Callable[..., Path], tmp_path: Path) -> ModelSource:
    """A copy that may be changed."""
    return open_wan(Path(shutil.copytree(tiny_wan_folder(), tmp_path / "model")))


def set_field(path: Path, name: str, value: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def test_each_file_that_is_read_decides(source: ModelSource) -> None:
    before = digests(source)
    assert set(before) == {
        CARD,
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    }
    for name in set(before) - {CARD}:
        path = source.folder / name
        whole = path.read_bytes()
        if path.suffix == ".json":
            set_field(path, "another", 1)
        else:
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert changed(digests(source), before) == (f"{name} changed",)
        path.write_bytes(whole)
    assert changed(digests(source), before) == ()


def test_the_card_decides_but_for_its_name(source: ModelSource) -> None:
    before, card = digests(source), source.card
    loops = (dataclasses.replace(card.loops[0], options={"noise": "keyed"}),)
    for change in (
        {"loops": loops},
        {"precision": dataclasses.replace(card.precision, latents="bfloat16")},
        {"defaults": dataclasses.replace(card.defaults, flow_shift=1.0)},
    ):
        other = dataclasses.replace(source, card=dataclasses.replace(card, **change))  # type: ignore[arg-type]
        assert changed(digests(other), before) == ("card changed",)
    named = dataclasses.replace(card, model_id=ModelId("another"))
    assert digests(dataclasses.replace(source, card=named)) == before


def test_files_that_come_and_go_are_named(source: ModelSource) -> None:
    before = digests(source)
    (source.folder / "tokenizer" / "added_tokens.json").write_text("{}")
    (source.folder / "tokenizer" / "tokenizer_config.json").unlink()
    assert changed(digests(source), before) == (
        "tokenizer/tokenizer_config.json is gone",
        "tokenizer/added_tokens.json is new",
    )


def test_what_says_nothing_of_the_output_is_left_out(source: ModelSource) -> None:
    before = digests(source)
    set_field(source.folder / "transformer" / "config.json", "_diffusers_version", "99")
    set_field(source.folder / "text_encoder" / "config.json", "transformers_version", "99")
    for name in ("goldens.json", "provenance.json", "README.md", ".cache/huggingface/x.json"):
        path = source.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    assert digests(source) == before
    # A file that is no JSON has a digest all the same.
    (source.folder / "vae" / "config.json").write_bytes(b"{")
    assert changed(digests(source), before) == ("vae/config.json changed",)
