"""Wan's float64 reference: against the library's modules made to compute in float64."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler
from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

import ostinato
from ostinato.backend.nets.umt5 import UMT5TextEncoder
from ostinato.backend.taps import wan_transformer_taps
from ostinato.errors import InvalidCheckpoint
from ostinato.models.wan.components import WanTextEncoder, WanTransformer, WanVae
from ostinato.models.wan.configs import EULER, UNIPC
from ostinato.models.wan.layout import SCHEDULER, TEXT_ENCODER, TRANSFORMER, VAE
from ostinato.models.wan.loading import load_tokenizer
from ostinato.models.wan.open import open_wan
from ostinato.models.wan.reference import (
    ReferenceScheduler,
    ReferenceTextEncoder,
    ReferenceTransformer,
    ReferenceVae,
    reference_of,
)
from ostinato.models.wan.reference_sampler import ReferenceSampler
from support.float64 import (
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
    spec_of,
    watched,
)

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


@pytest.fixture(scope="module")
def untouched(tiny_wan_folder: Callable[[str], Path]) -> Path:
    return tiny_wan_folder(UNIPC)


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_float64(monkeypatch)


class TestReference(ReferenceSuite):
    ADAPTERS = MappingProxyType(
        {
            TEXT_ENCODER: ReferenceTextEncoder,
            TRANSFORMER: ReferenceTransformer,
            VAE: ReferenceVae,
            SCHEDULER: ReferenceScheduler,
        }
    )
    DEPTHS = MappingProxyType(
        {TEXT_ENCODER: "num_layers", TRANSFORMER: "num_layers", VAE: "num_res_blocks"}
    )
    PROMPTS = MappingProxyType({PROMPT: False, "": False, "circle " * 600: True})
    open, reference_of = staticmethod(open_wan), staticmethod(reference_of)

    @staticmethod
    def served_text_encoder(
        encoder: UMT5EncoderModel, tokenizer: Path
    ) -> UMT5TextEncoder[PreTrainedTokenizerBase]:
        return WanTextEncoder(encoder, load_tokenizer(tokenizer))


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
    reference = load(ReferenceTransformer, folder, TRANSFORMER)
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
    reference = load(ReferenceVae, folder, VAE)
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
    source = open_wan(tiny_wan_folder(scheduler))
    with ostinato.Model(reference_of(source)) as reference, ostinato.Model(source) as served:
        assert_near_served(reference, served, 7e-6, **asked)


def test_the_sampler_memory_is_plain_and_steps_are_pure(
    tiny_wan_folder: Callable[[str], Path],
) -> None:
    spec = dataclasses.replace(spec_of(SCHEDULER), class_name=UNIPC)
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
