"""The chunk rollout passes the loop suite, with a window that slides and one that sees nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from conformance.loop import LoopSuite
from ostinato.card import LoopSpec
from ostinato.loop.chunks.rollout import ChunkRollout
from ostinato.request import GenerationSpec
from support.tiny_denoisers import FACTS, TinyCausal, embeds, spec_of

OPTIONS = {
    "frames_per_block": 2,
    "window_blocks": 2,
    "attention_context": "self_forcing",
    "guidance": "batched",
    "guidance_rule": "classifier_free",
}
BINDS = {"denoiser": "net", "latents": "codec"}


class TestRolloutConformance(LoopSuite):
    factory = ChunkRollout
    loop_spec = LoopSpec(name="r", loop="x:ChunkRollout", binds=BINDS, options=OPTIONS)
    reads = frozenset({"prompt_embeds", "negative_prompt_embeds"})
    writes = frozenset({"latents"})
    facts = FACTS

    def component(self) -> TinyCausal:
        return TinyCausal()

    def slots(self) -> Mapping[str, object]:
        return embeds()

    def specs(self) -> tuple[GenerationSpec, ...]:
        long = spec_of(seed=2, num_frames=11, guidance_scale=1.0, num_inference_steps=1)
        return spec_of(num_frames=7, sampler="renoise"), long, spec_of(num_frames=2, width=64)

    def refused(self) -> tuple[GenerationSpec, ...]:
        return spec_of(sampler="dpm"), spec_of(initial_latents=torch.zeros(1, 4, 4, 2, 4))


class TestNarrowRolloutConformance(TestRolloutConformance):
    loop_spec = LoopSpec(
        name="r",
        loop="x:ChunkRollout",
        binds=BINDS,
        options={**OPTIONS, "window_blocks": 1},
    )
