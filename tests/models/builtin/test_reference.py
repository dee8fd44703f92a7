"""The built-in model's float64 reference: against the served modules made to compute in float64.

Then they agree to 1e-12, ten thousand times below what float32 can show, in every tap.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

import ostinato
from ostinato.backend.nets.kv import ContextKV
from ostinato.backend.reference.component import PRECISION, ReferenceComponent
from ostinato.backend.taps import module_taps, wan_transformer_taps
from ostinato.card import ComponentSpec, ModelSource, PrecisionSpec
from ostinato.errors import InvalidCard, InvalidCheckpoint
from ostinato.models.builtin.card import open_builtin
from ostinato.models.builtin.codec import PatchCodec, read_codec_config
from ostinato.models.builtin.components import BuiltinCodec, BuiltinTextEncoder, BuiltinTransformer
from ostinato.models.builtin.layout import (
    CODEC,
    TEXT_ENCODER,
    TEXT_ENCODER_WEIGHTS,
    TOKENIZER,
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

PROMPT = "a red circle bouncing on a navy background"
RTOL = 1e-12
FRAMES, SIZE = 3, 8  # latent frames of a block, latent height and width
TOKENS = FRAMES * (SIZE // 2) ** 2


@pytest.fixture(scope="module")
def folder(tiny_builtin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder all of whose weights count, norms and biases too; its digests no longer hold."""
    copy = shutil.copytree(tiny_builtin_folder, tmp_path_factory.mktemp("moved") / "builtin")
    perturb_weights(copy)
    return Path(copy)


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_float64(monkeypatch)


def load(adapter: type[ReferenceComponent], folder: Path, name: str) -> ReferenceComponent:
    """Load a reference component of a folder."""
    return adapter.load(folder, spec_of(name), PRECISION)  # type: ignore[attr-defined]


def spec_of(name: str) -> ComponentSpec:
    return ComponentSpec(name=name, adapter="a:b", subfolder=name, class_name="C", ops=("x",))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def watched(component: ReferenceComponent, op: str, **inputs: object) -> tuple[dict, Values]:
    values: Values = []
    with component.observe(lambda name, value: values.append((name, value))):
        outputs = dict(component.op(op)(**inputs))
    component.op(op)(**inputs)
    assert len({id(value) for _, value in values}) == len(values)
    return outputs, values


def hooked(
    module: torch.nn.Module, names: tuple[str, ...], op: Callable[..., object], **inputs: object
) -> tuple[dict, Values]:
    values: Values = []
    with module_taps(module, names, lambda name, value: values.append((name, value))):
        outputs = dict(op(**inputs))  # type: ignore[call-overload]
    return outputs, values


def without_blocks(values: Values) -> Values:
    """Drop whole blocks: the causal forward runs a block in two halves, so no module gives them."""
    return [(name, value) for name, value in values if name.count(".") != 1 or "blocks" not in name]


@pytest.fixture
def text_encoders(folder: Path, float64: None) -> tuple[BuiltinTextEncoder, ReferenceComponent]:
    encoder = UMT5EncoderModel(UMT5Config.from_pretrained(folder / TEXT_ENCODER))
    tied = {"encoder.embed_tokens.weight": "shared.weight"}
    load_double(encoder, folder / TEXT_ENCODER / TEXT_ENCODER_WEIGHTS, tied)
    served = BuiltinTextEncoder(encoder, load_tokenizer(folder / TOKENIZER))
    return served, load(ReferenceTextEncoder, folder, TEXT_ENCODER)


@pytest.mark.parametrize("prompt", [PROMPT, "", "a dancing unicorn"])
def test_text_encoder(
    text_encoders: tuple[BuiltinTextEncoder, ReferenceComponent], prompt: str
) -> None:
    served, reference = text_encoders
    depth = len(served.text_encoder.encoder.block)
    names = (*(f"encoder.block.{i}" for i in range(depth)), "encoder.final_layer_norm")
    expected, theirs = hooked(served.text_encoder, names, served.encode, text=prompt)
    found, mine = watched(reference, "encode", text=prompt)
    assert_same_values(mine, theirs, RTOL)
    assert_same(found["prompt_embeds"], expected["prompt_embeds"], RTOL)
    assert found["notes"] == expected["notes"]
    assert bool(found["notes"]) == ("unicorn" in prompt)


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
        expected = served.generate(PROMPT, outputs=("video", "latents"), **asked)
    found = tiny_reference.generate(PROMPT, outputs=("video", "latents"), **asked)
    assert_same(found.latents, expected.latents, 4e-6)
    assert float((found.latents - expected.latents).abs().max()) > 0
    apart = np.abs(found.video.frames.astype(int) - expected.video.frames)
    assert found.video.frames.shape == (24, 64, 64, 3)
    assert apart.max() <= 1
    assert found.provenance.calls == expected.provenance.calls
    assert found.provenance.precision == "float64"


def test_the_name_opens_the_shipped_files() -> None:
    source, served = open_model("builtin-reference"), open_model("builtin")
    assert source.folder == served.folder
    assert source.card.model_id == "builtin-reference"
    assert source.card.parent is not None
    assert source.card.parent.digest == served.card.digest()
    assert source.card.files == served.card.files
    assert source.card.precision == PRECISION


def test_one_precision_is_served(tiny_builtin_folder: Path) -> None:
    float32 = PrecisionSpec(weights="float32", latents="float32")
    for adapter, name in (
        (ReferenceTextEncoder, TEXT_ENCODER),
        (ReferenceTransformer, TRANSFORMER),
        (ReferenceCodec, CODEC),
    ):
        with pytest.raises(InvalidCard, match="is the float64 reference"):
            adapter.load(tiny_builtin_folder, spec_of(name), float32)


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


@pytest.mark.parametrize(
    ("component", "adapter"),
    [
        (TRANSFORMER, ReferenceTransformer),
        (TEXT_ENCODER, ReferenceTextEncoder),
        (CODEC, ReferenceCodec),
    ],
)
def test_every_weight_counts(
    folder: Path, tmp_path: Path, component: str, adapter: type[ReferenceComponent]
) -> None:
    """A file of another depth lacks weights or has some too many."""
    copy = Path(shutil.copytree(folder, tmp_path / "builtin"))
    config = json.loads((copy / component / "config.json").read_text())
    for num_layers, told in ((config["num_layers"] - 1, "hold"), (config["num_layers"] + 1, "lac")):
        changed = json.dumps(config | {"num_layers": num_layers})
        (copy / component / "config.json").write_text(changed)
        with pytest.raises(InvalidCheckpoint, match=told):
            load(adapter, copy, component)
