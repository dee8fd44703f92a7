"""The built-in model's float64 reference: against the served modules, computing in float64."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

import ostinato
from ostinato.backend.nets.kv import ContextKV
from ostinato.backend.nets.umt5 import UMT5TextEncoder
from ostinato.backend.reference.component import ReferenceComponent
from ostinato.backend.taps import wan_transformer_taps
from ostinato.card import ModelSource
from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.card import open_builtin
from ostinato.models.builtin.codec import PatchCodec, read_codec_config
from ostinato.models.builtin.components import BuiltinCodec, BuiltinTextEncoder, BuiltinTransformer
from ostinato.models.builtin.layout import (
    CODEC,
    TEXT_ENCODER,
    TRANSFORMER,
    TRANSFORMER_WEIGHTS,
)
from ostinato.models.builtin.reference import (
    ReferenceCodec,
    ReferenceTextEncoder,
    ReferenceTransformer,
    open_reference,
    reference_of,
)
from ostinato.models.builtin.text import load_tokenizer
from ostinato.models.registry import open_model
from support.float64 import (
    Values,
    assert_same,
    assert_same_values,
    compute_in_float64,
    load_double,
    perturb_weights,
)
from support.reference import (
    PROMPT,
    RTOL,
    ReferenceSuite,
    assert_near_served,
    hooked,
    load,
    normal,
    watched,
)

FRAMES, SIZE = 3, 8  # latent frames of a block, latent height and width
TOKENS = FRAMES * (SIZE // 2) ** 2


@pytest.fixture(scope="module")
def folder(tiny_builtin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder all of whose weights count, norms and biases too; its digests no longer hold."""
    copy = shutil.copytree(tiny_builtin_folder, tmp_path_factory.mktemp("moved") / "builtin")
    perturb_weights(copy)
    return Path(copy)


@pytest.fixture(scope="module")
def untouched(tiny_builtin_folder: Path) -> Path:
    return tiny_builtin_folder


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_float64(monkeypatch)


class TestReference(ReferenceSuite):
    ADAPTERS = MappingProxyType(
        {
            TEXT_ENCODER: ReferenceTextEncoder,
            TRANSFORMER: ReferenceTransformer,
            CODEC: ReferenceCodec,
        }
    )
    DEPTHS = MappingProxyType(dict.fromkeys(ADAPTERS, "num_layers"))
    PROMPTS = MappingProxyType({PROMPT: False, "": False, "a dancing unicorn": True})
    open, reference_of = staticmethod(open_builtin), staticmethod(reference_of)

    @staticmethod
    def served_text_encoder(
        encoder: UMT5EncoderModel, tokenizer: Path
    ) -> UMT5TextEncoder[PreTrainedTokenizerFast]:
        return BuiltinTextEncoder(encoder, load_tokenizer(tokenizer))


def without_blocks(values: Values) -> Values:
    """Drop whole blocks: the causal forward runs a block in two halves, so no module gives them."""
    return [(name, value) for name, value in values if name.count(".") != 1 or "blocks" not in name]


Pair = tuple[BuiltinTransformer, WanTransformer3DModel, ReferenceComponent]


@pytest.fixture
def transformers(folder: Path, float64: None) -> Pair:
    config = WanTransformer3DModel.load_config(folder / TRANSFORMER)
    module = WanTransformer3DModel.from_config(config)
    load_double(module, folder / TRANSFORMER / TRANSFORMER_WEIGHTS)
    reference = load(ReferenceTransformer, folder, TRANSFORMER)
    return BuiltinTransformer(module), module, reference


@pytest.mark.parametrize("num_branches", [1, 2])
@pytest.mark.parametrize("num_seen", [0, TOKENS])
def test_transformer(transformers: Pair, num_branches: int, num_seen: int) -> None:
    """All three ops, one and two branches, with and without history, far along a stream."""
    served, module, reference = transformers
    names = wan_transformer_taps(len(module.blocks), whole_blocks=False)
    embeds = tuple(normal(1, 24, module.config.text_dim, seed=i) for i in range(num_branches))
    expected, theirs = hooked(module, names, served.encode_text, prompt_embeds=embeds)
    found, mine = watched(reference, "encode_text", prompt_embeds=embeds)
    assert_same_values(mine, theirs, RTOL)
    for layer, served_layer in zip(found["text_kv"], expected["text_kv"], strict=True):
        assert type(layer) is type(served_layer)
        for one, other in zip(layer, served_layer, strict=True):
            assert_same(one, other, RTOL)

    shape = (num_branches, num_seen, module.config.num_attention_heads, 32)
    context = tuple(ContextKV(normal(*shape, seed=7), normal(*shape, seed=8)) for _ in names)
    inputs: dict[str, object] = {
        "latents": normal(1, module.config.in_channels, FRAMES, SIZE, SIZE, seed=9),
        "first_frame": torch.tensor(777),
        "text_kv": expected["text_kv"],
        "context": context[: len(module.blocks)] if num_seen else None,
    }
    stored, theirs = hooked(module, names, served.store, **inputs)
    found, mine = watched(reference, "store", **inputs)
    assert_same_values(without_blocks(mine), theirs, RTOL)
    for layer, served_layer in zip(found["layers"], stored["layers"], strict=True):
        assert type(layer) is type(served_layer)
        for one, other in zip(layer, served_layer, strict=True):
            assert_same(one, other, RTOL)

    inputs["timestep"] = torch.tensor(641.25)
    expected, theirs = hooked(module, names, served.predict, **inputs)
    found, mine = watched(reference, "predict", **inputs)
    assert_same_values(without_blocks(mine), theirs, RTOL)
    assert_same(found["prediction"], expected["prediction"], RTOL)


def test_hidden_states_after_each_block_are_shown(transformers: Pair) -> None:
    served, module, reference = transformers
    embeds = (normal(1, 24, module.config.text_dim),)
    text_kv = reference.op("encode_text")(prompt_embeds=embeds)["text_kv"]
    latents = normal(1, module.config.in_channels, FRAMES, SIZE, SIZE)
    inputs = {"latents": latents, "first_frame": torch.tensor(0), "text_kv": text_kv}
    _, values = watched(reference, "store", context=None, **inputs)
    network, blocks = served.network, dict(values)
    embedded = network.embed(latents, torch.zeros(1, FRAMES, dtype=torch.float64))
    rotary = network.rotary(torch.arange(FRAMES), SIZE, SIZE)
    hidden = embedded.hidden_states
    for i in range(network.num_layers):
        hidden, _ = network.blocks(
            i, i + 1, hidden, embedded.modulation, rotary, text_kv[i : i + 1]
        )
        assert_same(blocks[f"blocks.{i}"], hidden, RTOL)


def test_codec(folder: Path, float64: None) -> None:
    module = PatchCodec(read_codec_config(folder / CODEC))
    load_double(module, folder / CODEC / "model.safetensors")
    served, theirs = BuiltinCodec(module), Values()
    latents = normal(1, module.config.latent_channels, 2, SIZE, SIZE)
    with served.observe(lambda name, value: theirs.append((name, value))):
        expected = dict(served.decode(latents))
    served.decode(latents)
    assert [name for name, _ in theirs].count("pixels") == 1
    found, mine = watched(load(ReferenceCodec, folder, CODEC), "decode", latents=latents)
    assert_same_values(mine, theirs, RTOL)
    assert found["frames"].std() > 10
    np.testing.assert_array_equal(found["frames"], expected["frames"])


@pytest.fixture(scope="module")
def tiny_reference(tiny_builtin_folder: Path) -> Iterator[ostinato.Model]:
    with ostinato.Model(open_reference(tiny_builtin_folder)) as model:
        yield model


@pytest.mark.parametrize("sampler", ["euler", "renoise"])
def test_end_to_end_against_float32(
    tiny_builtin_folder: Path, tiny_reference: ostinato.Model, sampler: str
) -> None:
    """The whole program through the engine: two blocks, so that stored K/V are read as well.

    Measured 4e-7 of the largest latent; allowed ten times that.
    """
    asked = {"seed": 5, "num_frames": 24, "num_inference_steps": 4, "sampler": sampler}
    with ostinato.load(tiny_builtin_folder) as served:
        assert_near_served(tiny_reference, served, 4e-6, **asked)


def test_the_name_opens_the_shipped_files() -> None:
    source, served = open_model("builtin-reference"), open_model("builtin")
    assert source.folder == served.folder
    assert source.card.model_id == "builtin-reference"
    assert source.card.files == served.card.files


SERVE = """
import json, sys
import ostinato
with ostinato.load({folder!r}) as model:
    model.generate("a red circle", num_frames=4, num_inference_steps=1)
print(json.dumps([name for name in sys.modules if "reference" in name and "ostinato" in name]))
"""


def test_serving_the_real_model_imports_no_reference(tiny_builtin_folder: Path) -> None:
    script = SERVE.format(folder=str(tiny_builtin_folder))
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("component", [TRANSFORMER, TEXT_ENCODER, CODEC])
@pytest.mark.parametrize("broken", ["missing", "truncated"])
def test_a_broken_component_raises_and_nothing_takes_its_place(
    tiny_builtin_folder: Path, tmp_path: Path, component: str, broken: str
) -> None:
    """Broken between opening and loading, where no digest is looked at any more."""
    copy = Path(shutil.copytree(tiny_builtin_folder, tmp_path / "builtin"))
    for source in (open_builtin(copy), reference_of(open_builtin(copy))):
        (weights,) = (copy / component).glob("*.safetensors")
        content = weights.read_bytes()
        if broken == "missing":
            weights.unlink()
        else:
            weights.write_bytes(content[: len(content) // 2])
        with pytest.raises(InvalidCheckpoint, match=component):
            _generate(source)
        weights.write_bytes(content)


def _generate(source: ModelSource) -> None:
    with ostinato.Model(source) as model:
        model.generate(PROMPT, num_frames=4, num_inference_steps=1)
