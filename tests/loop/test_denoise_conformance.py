"""The denoise loop passes the loop suite, in each form and with a library's sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

from conformance.loop import LoopSuite
from ostinato.card import LoopSpec
from ostinato.loop.denoise import Denoise
from ostinato.loop.sampling import LibrarySampler, LibraryScheduler
from ostinato.request import GenerationSpec
from support.tiny_denoisers import FACTS, TinyDenoiser, embeds, spec_of

BINDS = {"denoiser": "net", "latents": "codec"}
UNIPC = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
LIBRARY_FACTS = {**FACTS, "sampler": LibrarySampler(cast("LibraryScheduler", UNIPC))}


class TestDenoiseConformance(LoopSuite):
    factory = Denoise
    loop_spec = LoopSpec(name="denoise", loop="x:Denoise", binds=BINDS)
    reads = frozenset({"prompt_embeds", "negative_prompt_embeds"})
    writes = frozenset({"latents"})
    facts = FACTS

    def component(self) -> TinyDenoiser:
        return TinyDenoiser()

    def slots(self) -> Mapping[str, object]:
        return embeds()

    def specs(self) -> tuple[GenerationSpec, ...]:
        wide = spec_of(seed=2, width=64, num_frames=6, guidance_scale=1.0)
        return spec_of(sampler="renoise"), wide, spec_of(num_inference_steps=1, flow_shift=3.0)

    def refused(self) -> tuple[GenerationSpec, ...]:
        return spec_of(sampler="dpm"), spec_of(initial_latents=torch.zeros(1, 4))


class TestBatchedDenoiseConformance(TestDenoiseConformance):
    loop_spec = LoopSpec(
        name="denoise", loop="x:Denoise", binds=BINDS, options={"guidance": "batched"}
    )


class TestLibraryDenoiseConformance(TestDenoiseConformance):
    loop_spec = LoopSpec(
        name="denoise",
        loop="x:Denoise",
        binds={**BINDS, "sampler": "scheduler"},
        options={"noise": "oracle"},
    )
    facts = LIBRARY_FACTS

    def refused(self) -> tuple[GenerationSpec, ...]:
        return (spec_of(initial_latents=torch.zeros(1, 4)),)
