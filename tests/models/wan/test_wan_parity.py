"""Wan against WanPipeline on the same folder: equal bytes, no forward more than needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ostinato
from ostinato.api import Model
from ostinato.card import ModelSource
from ostinato.models.wan.components import WanVae
from ostinato.models.wan.open import open_wan
from ostinato.models.wan.oracle import OracleRun, WanOracle
from ostinato.request import LatentPart
from ostinato.runtime.output import Output

UNIPC, EULER = "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
PROMPT = "a red circle bouncing on a navy background"


SIZE = (("height", 16), ("width", 32), ("num_frames", 5), ("num_inference_steps", 2))


class Pair:
    """A served model and its oracle over one folder."""

    def __init__(self, folder: Path) -> None:
        self.model = ostinato.load(folder)
        self.oracle = WanOracle(self.model.source)

    def both(self, prompt: str = PROMPT, **fields: object) -> tuple[Output, OracleRun]:
        fields = dict(SIZE) | fields
        out = self.model.generate(prompt, outputs=("video", "latents"), **fields)
        return out, self.oracle.run(out.provenance.spec)


@pytest.fixture(scope="module", params=[UNIPC, EULER])
def pair(request: pytest.FixtureRequest, tiny_wan_folder: Callable[[str], Path]) -> Iterator[Pair]:
    made = Pair(tiny_wan_folder(request.param))
    yield made
    made.model.close()


def assert_equal(out: Output, expected: OracleRun) -> None:
    assert out.latents.dtype == expected.latents.dtype
    assert torch.equal(out.latents, expected.latents)
    assert expected.frames.std() > 1, "a constant clip would prove nothing"
    np.testing.assert_array_equal(out.video.frames, expected.frames)


@pytest.mark.parametrize(
    ("height", "width", "num_frames", "steps", "guidance_scale"),
    [(16, 16, 1, 2, 5.0), (32, 48, 5, 4, 1.0), (32, 48, 5, 4, 5.0), (48, 32, 9, 3, 1.0)],
)
def test_bytes_and_forward_counts_are_the_librarys(
    pair: Pair, height: int, width: int, num_frames: int, steps: int, guidance_scale: float
) -> None:
    out, expected = pair.both(
        height=height,
        width=width,
        num_frames=num_frames,
        num_inference_steps=steps,
        guidance_scale=guidance_scale,
        negative_prompt="blurry",
        seed=7,
    )
    assert_equal(out, expected)
    assert out.video.frames.shape == (num_frames, height, width, 3)
    branches = 2 if guidance_scale > 1.0 else 1
    assert out.provenance.calls == {
        "text_encoder.encode": branches,
        "transformer.predict": steps * branches,
        "vae.decode": 1,
    }
    assert expected.calls == {"text_encoder": branches, "transformer": steps * branches}


def test_latents_alone_decode_nothing(pair: Pair) -> None:
    out = pair.model.generate(PROMPT, outputs=("latents",), guidance_scale=1.0, **dict(SIZE))
    assert out.provenance.calls == {"text_encoder.encode": 1, "transformer.predict": 2}


def test_the_negative_prompt_counts_only_with_guidance(pair: Pair) -> None:
    out, expected = pair.both(guidance_scale=5.0, negative_prompt="a blurry cat")
    assert_equal(out, expected)
    left_out, expected = pair.both(guidance_scale=5.0)
    assert_equal(left_out, expected)
    assert not torch.equal(out.latents, left_out.latents)


def test_a_flow_shift_is_the_librarys(pair: Pair) -> None:
    out, expected = pair.both(flow_shift=7.5, num_inference_steps=4, guidance_scale=1.0)
    assert_equal(out, expected)
    own, expected = pair.both(flow_shift=3.0, num_inference_steps=4, guidance_scale=1.0)
    plain = pair.model.generate(
        PROMPT, outputs=("latents",), **dict(SIZE) | {"num_inference_steps": 4, "guidance_scale": 1}
    )
    assert torch.equal(own.latents, plain.latents), "3.0 is what the folder configures"
    assert not torch.equal(out.latents, own.latents)


@pytest.mark.parametrize("prompt", ["  Caf&eacute; \t caf\u00c3\u00a9 &lt;b&gt;\n", "a " * 700])
def test_prompts_are_cleaned_and_cut_as_the_library_does(pair: Pair, prompt: str) -> None:
    out, expected = pair.both(prompt, num_inference_steps=1, guidance_scale=1.0)
    assert_equal(out, expected)
    assert bool(out.advice) == (len(prompt) > 512)


def test_given_latents_start_the_trajectory(pair: Pair) -> None:
    latents = torch.randn(1, 16, 2, 2, 4, generator=torch.Generator().manual_seed(3))
    kept = latents.clone()
    out, expected = pair.both(inputs=(LatentPart(latents=latents),))
    assert_equal(out, expected)
    assert torch.equal(latents, kept)


def test_interleaved_requests_give_what_each_gives_alone(pair: Pair) -> None:
    fields = (
        {"num_inference_steps": 3, "guidance_scale": 5.0, "seed": 1},
        {"num_inference_steps": 5, "guidance_scale": 1.0, "seed": 2, "num_frames": 9},
        {"num_inference_steps": 4, "guidance_scale": 2.0, "seed": 3, "flow_shift": 6.0},
    )
    common = dict(SIZE) | {"outputs": ("video", "latents")}
    requests = [pair.model.request(PROMPT, **(common | each)) for each in fields]
    together = pair.model.engine.run(requests)
    for out in together:
        assert_equal(out, pair.oracle.run(out.provenance.spec))


def test_float_pixels_are_the_librarys(pair: Pair) -> None:
    out, expected = pair.both()
    card = pair.model.card
    vae = WanVae.load(pair.model.folder, card.component("vae"), card.precision)
    with torch.no_grad():
        pixels = vae.pixels(out.latents)
    assert pixels.dtype == expected.pixels.dtype
    np.testing.assert_array_equal(pixels, expected.pixels)


def test_bfloat16_is_the_librarys_too(tiny_wan_folder: Callable[[str], Path]) -> None:
    source = open_wan(tiny_wan_folder(UNIPC))
    card = source.card
    variant = card.derive(
        precision=dataclasses.replace(card.precision, weights="bfloat16"),
        recipe=dataclasses.replace(card.recipe, assumes_precision="bfloat16"),
    )
    half = ModelSource(card=variant, folder=source.folder)
    with Model(half) as model:
        out = model.generate(PROMPT, outputs=("video", "latents"), **dict(SIZE))
    assert out.provenance.precision == "bfloat16"
    assert_equal(out, WanOracle(half).run(out.provenance.spec))


def test_decoding_leaves_nothing_on_the_module(tiny_wan_folder: Callable[[str], Path]) -> None:
    source = open_wan(tiny_wan_folder(UNIPC))
    vae = WanVae.load(source.folder, source.card.component("vae"), source.card.precision)
    latents = torch.randn(1, 16, 3, 4, 2, generator=torch.Generator().manual_seed(1))
    before = dict(vars(vae.module))
    with torch.no_grad():
        frames = vae.decode(latents)["frames"]
        with pytest.raises(RuntimeError):
            vae.decode(latents[:, :8])
        assert vars(vae.module) == before
        expected = vae.module.decode(latents * vae_std(vae) + vae_mean(vae)).sample
    assert frames.shape == (9, 32, 16, 3)
    pixels = (expected[0].permute(1, 2, 3, 0) / 2 + 0.5).numpy()
    assert np.abs(frames / 255 - pixels).max() < 1 / 255


def vae_std(vae: WanVae) -> torch.Tensor:
    return torch.tensor(vae.module.config["latents_std"]).view(1, -1, 1, 1, 1)


def vae_mean(vae: WanVae) -> torch.Tensor:
    return torch.tensor(vae.module.config["latents_mean"]).view(1, -1, 1, 1, 1)
