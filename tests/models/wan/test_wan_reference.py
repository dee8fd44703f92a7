"""Wan's float64 reference: against the library's modules made to compute in float64.

Then they agree to 1e-12, ten thousand times below what float32 can show, in every tap.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler
from transformers import UMT5Config, UMT5EncoderModel

import ostinato
from ostinato.backend.reference.component import PRECISION, ReferenceComponent
from ostinato.backend.taps import module_taps, wan_transformer_taps
from ostinato.card import ComponentSpec, PrecisionSpec
from ostinato.errors import InvalidCard, InvalidCheckpoint
from ostinato.models.wan.components import WanTextEncoder, WanTransformer, WanVae
from ostinato.models.wan.layout import SCHEDULER, TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from ostinato.models.wan.loading import load_tokenizer
from ostinato.models.wan.reference import (
    ReferenceScheduler,
    ReferenceTextEncoder,
    ReferenceTransformer,
    ReferenceVae,
    open_reference,
)
from ostinato.models.wan.reference_sampler import ReferenceSampler
from support.float64 import (
    Values,
    assert_same,
    assert_same_values,
    compute_in_float64,
    load_double,
    perturb_weights,
)

UNIPC, EULER = "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
PROMPT = "a red circle bouncing on a navy background"
RTOL = 1e-12
DIFFUSION_WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def folder(
    tiny_wan_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder all of whose weights count, norms and biases too."""
    copy = tmp_path_factory.mktemp("moved") / "wan"
    shutil.copytree(tiny_wan_folder(UNIPC), copy)
    perturb_weights(copy)
    # WanPipeline takes the statistics in float32; values that float32 holds are the same in both.
    file = copy / VAE / "config.json"
    config = json.loads(file.read_text())
    for name in ("latents_mean", "latents_std"):
        config[name] = [float(np.float32(value)) for value in config[name]]
    file.write_text(json.dumps(config))
    return copy


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_float64(monkeypatch)


def spec_of(name: str) -> ComponentSpec:
    return ComponentSpec(name=name, adapter="a:b", subfolder=name, class_name="C", ops=("x",))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def watched(component: ReferenceComponent, op: str, **inputs: object) -> tuple[dict, Values]:
    values: Values = []
    with component.observe(lambda name, value: values.append((name, value))):
        outputs = dict(component.op(op)(**inputs))
    count = len(values)
    component.op(op)(**inputs)
    assert len(values) == count, "a tap was called after its context was closed"
    return outputs, values


def hooked(
    module: torch.nn.Module, names: tuple[str, ...], op: Callable[..., object], **inputs: object
) -> tuple[dict, Values]:
    values: Values = []
    with module_taps(module, names, lambda name, value: values.append((name, value))):
        outputs = dict(op(**inputs))  # type: ignore[call-overload]
    return outputs, values


def test_text_encoder(folder: Path, float64: None) -> None:
    encoder = UMT5EncoderModel(UMT5Config.from_pretrained(folder / TEXT_ENCODER))
    tied = {"encoder.embed_tokens.weight": "shared.weight"}
    load_double(encoder, folder / TEXT_ENCODER / "model.safetensors", tied)
    served = WanTextEncoder(encoder, load_tokenizer(folder / TOKENIZER))
    reference = ReferenceTextEncoder.load(folder, spec_of(TEXT_ENCODER), PRECISION)
    names = ("encoder.block.0", "encoder.final_layer_norm")
    for prompt in (PROMPT, "", "circle " * 600):
        expected, theirs = hooked(encoder, names, served.encode, text=prompt)
        found, mine = watched(reference, "encode", text=prompt)
        assert_same_values(mine, theirs, RTOL)
        assert_same(found["prompt_embeds"], expected["prompt_embeds"], RTOL)
        assert found["notes"] == expected["notes"]
        assert bool(found["notes"]) == (len(prompt) > 1000)


@pytest.mark.parametrize("timestep", [torch.tensor(937), torch.tensor(412.625)])
@pytest.mark.parametrize("batch", [1, 2])
def test_transformer(folder: Path, float64: None, timestep: torch.Tensor, batch: int) -> None:
    config = WanTransformer3DModel.load_config(folder / TRANSFORMER)
    module = WanTransformer3DModel.from_config(config)
    load_double(module, folder / TRANSFORMER / DIFFUSION_WEIGHTS)
    inputs = {
        "latents": normal(batch, module.config.in_channels, 3, 4, 6),
        "timestep": timestep,
        "prompt_embeds": normal(batch, 16, module.config.text_dim, seed=1),
    }
    names = wan_transformer_taps(len(module.blocks), whole_blocks=True)
    expected, theirs = hooked(module, names, WanTransformer(module).predict, **inputs)
    reference = ReferenceTransformer.load(folder, spec_of(TRANSFORMER), PRECISION)
    found, mine = watched(reference, "predict", **inputs)
    assert_same_values(mine, theirs, RTOL)
    assert_same(found["prediction"], expected["prediction"], RTOL)


@pytest.mark.parametrize("num_frames", [1, 2, 4])
def test_vae(folder: Path, float64: None, num_frames: int) -> None:
    """Enough latent frames that every convolution's history is filled and moved on."""
    module = AutoencoderKLWan.from_config(AutoencoderKLWan.load_config(folder / VAE))
    load_double(module, folder / VAE / DIFFUSION_WEIGHTS)
    names = (
        "post_quant_conv",
        *(f"decoder.{part}" for part in ("conv_in", "mid_block")),
        *(f"decoder.up_blocks.{index}" for index in range(len(module.decoder.up_blocks))),
        "decoder.conv_out",
    )
    latents = normal(1, module.config.z_dim, num_frames, 2, 3)
    served = WanVae(module)
    expected, theirs = hooked(module, names, served.decode, latents=latents)
    reference = ReferenceVae.load(folder, spec_of(VAE), PRECISION)
    found, mine = watched(reference, "decode", latents=latents)
    assert [name for name, _ in mine].count("decoder.conv_out") == num_frames
    assert_same_values(mine, theirs, RTOL)
    assert found["frames"].std() > 1
    np.testing.assert_array_equal(found["frames"], expected["frames"])
    # The library hands pixels out in float32.
    np.testing.assert_allclose(reference.pixels(latents), served.pixels(latents), atol=1e-7)


@pytest.mark.parametrize("scheduler", [UNIPC, EULER])
def test_end_to_end_against_float32(tiny_wan_folder: Callable[[str], Path], scheduler: str) -> None:
    """Measured 7e-7 of the largest latent; allowed ten times that."""
    asked = {"height": 16, "width": 32, "num_frames": 9, "num_inference_steps": 5, "seed": 3}
    asked |= {"negative_prompt": "blurry", "guidance_scale": 5.0, "flow_shift": 4.0}
    with ostinato.load(tiny_wan_folder(scheduler)) as model:
        expected = model.generate(PROMPT, outputs=("video", "latents"), **asked)
    with ostinato.Model(open_reference(tiny_wan_folder(scheduler))) as model:
        found = model.generate(PROMPT, outputs=("video", "latents"), **asked)
    assert_same(found.latents, expected.latents, 7e-6)
    assert float((found.latents - expected.latents).abs().max()) > 0
    apart = np.abs(found.video.frames.astype(int) - expected.video.frames)
    assert found.video.frames.shape == (9, 16, 32, 3)
    assert apart.max() <= 1
    assert found.provenance.calls == expected.provenance.calls
    assert found.provenance.precision == "float64"


def test_the_sampler_memory_is_plain_and_steps_are_pure(
    tiny_wan_folder: Callable[[str], Path],
) -> None:
    spec = ComponentSpec(
        name=SCHEDULER, adapter="a:b", subfolder=SCHEDULER, class_name=UNIPC, ops=()
    )
    sampler = ReferenceScheduler.read_facts(tiny_wan_folder(UNIPC), spec)
    schedule = sampler.schedule(3, None)
    memory = sampler.start(schedule, noise=None, block=0)  # type: ignore[arg-type]
    x, velocity = normal(1, 2, 1, 2, 2), normal(1, 2, 1, 2, 2, seed=1)
    for step in range(schedule.num_steps):
        pair = schedule.sigmas[step : step + 2].tolist()
        (x, after), (again, _) = (sampler.step(x, velocity, *pair, memory) for _ in range(2))
        assert torch.equal(x, again)
        memory = after
    assert x.dtype == torch.float64
    assert set(memory.attributes) == {"sigmas", "clean", "corrected", "order"}


def test_settings_that_are_not_computed_are_refused() -> None:
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, solver_type="bh1"
    )
    with pytest.raises(InvalidCheckpoint, match=r"does not compute \{'solver_type': 'bh1'\}"):
        ReferenceSampler(scheduler)


def test_one_precision_is_served(folder: Path) -> None:
    float32 = PrecisionSpec(weights="float32", latents="float32")
    for adapter, name in (
        (ReferenceTextEncoder, TEXT_ENCODER),
        (ReferenceTransformer, TRANSFORMER),
        (ReferenceVae, VAE),
        (ReferenceScheduler, SCHEDULER),
    ):
        with pytest.raises(InvalidCard, match="is the float64 reference"):
            adapter.load(folder, spec_of(name), float32)


def test_the_card_records_what_it_measures(tiny_wan_folder: Callable[[str], Path]) -> None:
    source = open_reference(tiny_wan_folder(UNIPC))
    served = ostinato.load(tiny_wan_folder(UNIPC)).card
    assert source.card.model_id == f"{served.model_id}-reference"
    assert source.card.parent is not None
    assert source.card.parent.digest == served.digest()
