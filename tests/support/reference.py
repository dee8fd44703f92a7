"""What every family's float64 reference is held to, beside the networks that are its own.

The served modules, made to compute in float64, agree with it to 1e-12 in every tap: ten thousand
times below what float32 can show.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from ostinato.api import Model
from ostinato.backend.nets.umt5 import UMT5TextEncoder
from ostinato.backend.reference.component import PRECISION, ReferenceComponent
from ostinato.backend.taps import module_taps, umt5_taps
from ostinato.card import ComponentSpec, ModelSource, PrecisionSpec
from ostinato.errors import InvalidCard, InvalidCheckpoint
from support.float64 import (
    Values,
    assert_same,
    assert_same_values,
    compute_in_float64,
    load_double,
)

PROMPT = "a red circle bouncing on a navy background"
RTOL = 1e-12
TEXT_ENCODER, TOKENIZER = "text_encoder", "tokenizer"


def spec_of(name: str) -> ComponentSpec:
    return ComponentSpec(name=name, adapter="a:b", subfolder=name, class_name="C", ops=("x",))


def load(adapter: type[ReferenceComponent], folder: Path, name: str) -> Any:
    """Load a reference component of a folder; what else it offers is the family's."""
    return adapter.load(folder, spec_of(name), PRECISION)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def watched(component: ReferenceComponent, op: str, **inputs: object) -> tuple[dict, Values]:
    """Run an op of the reference; returns its outputs and what its taps showed."""
    values: Values = []
    with component.observe(lambda name, value: values.append((name, value))):
        outputs = dict(component.op(op)(**inputs))
    count = len(values)
    component.op(op)(**inputs)
    assert len(values) == count, "a tap was called after its context was closed"
    return outputs, values


def hooked(
    module: nn.Module, names: tuple[str, ...], op: Callable[..., object], **inputs: object
) -> tuple[dict, Values]:
    """Run an op of a served component; returns its outputs and what its modules gave."""
    values: Values = []
    with module_taps(module, names, lambda name, value: values.append((name, value))):
        outputs = dict(op(**inputs))  # type: ignore[call-overload]
    return outputs, values


def assert_near_served(reference: Model, served: Model, rtol: float, **asked: object) -> None:
    """Hold a whole request to the reference against float32; rtol is of the largest latent."""
    found, expected = (
        model.generate(PROMPT, outputs=("video", "latents"), **asked)
        for model in (reference, served)
    )
    assert_same(found.latents, expected.latents, rtol)
    assert float((found.latents - expected.latents).abs().max()) > 0
    assert found.video.frames.shape == expected.video.frames.shape
    assert len(found.video.frames) == asked["num_frames"]
    assert np.abs(found.video.frames.astype(int) - expected.video.frames).max() <= 1
    assert found.provenance.calls == expected.provenance.calls
    assert found.provenance.precision == "float64"


class ReferenceSuite:
    """Tests of what all references have.

    The module of a subclass has the fixtures `folder`, all of whose weights count, norms and
    biases too, and `untouched`, a folder as it was written.

    ADAPTERS: the reference component of each name. DEPTHS: the setting that says how many layers
    a component with weights has. PROMPTS: prompts, and whether there is advice on them.
    """

    ADAPTERS: ClassVar[Mapping[str, type[ReferenceComponent]]]
    DEPTHS: ClassVar[Mapping[str, str]]
    PROMPTS: ClassVar[Mapping[str, bool]]

    @staticmethod
    def served_text_encoder(encoder: UMT5EncoderModel, tokenizer: Path) -> UMT5TextEncoder[Any]:
        """Make the served text encoder of a module and the folder of its tokenizer."""
        raise NotImplementedError

    @staticmethod
    def open(folder: Path) -> ModelSource:
        """Open the family's own folder as served."""
        raise NotImplementedError

    @staticmethod
    def reference_of(source: ModelSource) -> ModelSource:
        """Derive the reference."""
        raise NotImplementedError

    def test_text_encoder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compute_in_float64(monkeypatch)
        encoder = UMT5EncoderModel(UMT5Config.from_pretrained(folder / TEXT_ENCODER))
        tied = {"encoder.embed_tokens.weight": "shared.weight"}
        load_double(encoder, folder / TEXT_ENCODER / "model.safetensors", tied)
        served = self.served_text_encoder(encoder, folder / TOKENIZER)
        reference = load(self.ADAPTERS[TEXT_ENCODER], folder, TEXT_ENCODER)
        names = umt5_taps(encoder.config.num_layers)
        for prompt, advised in self.PROMPTS.items():
            expected, theirs = hooked(encoder, names, served.encode, text=prompt)
            found, mine = watched(reference, "encode", text=prompt)
            assert_same_values(mine, theirs, RTOL)
            assert_same(found["prompt_embeds"], expected["prompt_embeds"], RTOL)
            assert found["notes"] == expected["notes"]
            assert bool(found["notes"]) == advised

    def test_one_precision_is_served(self, folder: Path) -> None:
        float32 = PrecisionSpec(weights="float32", latents="float32")
        for name, adapter in self.ADAPTERS.items():
            with pytest.raises(InvalidCard, match=f"{name!r} is the float64 reference"):
                adapter.load(folder, spec_of(name), float32)

    def test_every_weight_counts(self, folder: Path, tmp_path: Path) -> None:
        """A file of another depth lacks weights or has some too many."""
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        assert set(self.DEPTHS) <= set(self.ADAPTERS)
        for name, depth in self.DEPTHS.items():
            file = copy / name / "config.json"
            config = json.loads(file.read_text())
            for layers, told in (
                (config[depth] - 1, "hold|at least 1"),
                (config[depth] + 1, "lac"),
            ):
                file.write_text(json.dumps({**config, depth: layers}))
                with pytest.raises(InvalidCheckpoint, match=told):
                    load(self.ADAPTERS[name], copy, name)

    def test_the_card_records_what_it_measures(self, untouched: Path) -> None:
        served = self.open(untouched)
        source = self.reference_of(served)
        assert source.folder == served.folder
        assert source.card.model_id == f"{served.card.model_id}-reference"
        assert source.card.parent is not None
        assert source.card.parent.digest == served.card.digest()
        assert source.card.precision == PRECISION
        assert {c.name: c.adapter for c in source.card.components} == {
            name: f"{adapter.__module__}:{adapter.__name__}"
            for name, adapter in self.ADAPTERS.items()
        }
