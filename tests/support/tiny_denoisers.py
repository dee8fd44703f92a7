"""Small real networks behind the component contract, and specs to drive stock loops with."""
# B branch, C channel, T latent frame, H W latent, L token, N head, E head width, D width

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import nn

from ostinato.loop.contract import LoopContext, Ring
from ostinato.loop.facts import DenoiserFacts, LatentFacts
from ostinato.loop.noise import NoiseStream
from ostinato.memory import KVPool, LayerContext
from ostinato.request import GenerationSpec
from ostinato.tasks import ModelId, OutputName, RequestId, TaskType

CHANNELS, WIDTH, HEADS, LAYERS, TEXT_TOKENS = 4, 32, 2, 2, 4
FACTS: Mapping[str, object] = {
    "denoiser": DenoiserFacts(in_channels=CHANNELS, patch_size=(1, 1, 1)),
    "latents": LatentFacts(temporal_stride=1, spatial_stride=8, causal=False),
}
SPEC = GenerationSpec(
    request_id=RequestId("r1"),
    model=ModelId("tiny"),
    task=TaskType.TEXT_TO_VIDEO,
    prompt="",
    negative_prompt="",
    seed=5,
    height=16,
    width=32,
    num_frames=4,
    fps=8.0,
    num_inference_steps=3,
    guidance_scale=3.0,
    sampler="euler",
    flow_shift=None,
    outputs=(OutputName.LATENTS,),
)


def spec_of(**changes: object) -> GenerationSpec:
    """Change the spec: 4 latent frames of 2 x 4, 3 Euler steps, guidance 3."""
    return dataclasses.replace(SPEC, **changes)  # type: ignore[arg-type]


def embeds() -> dict[str, object]:
    """Return the embeddings of both branches [1, L, D], seeded."""
    generator = torch.Generator().manual_seed(1)
    names = ("prompt_embeds", "negative_prompt_embeds")
    return {n: torch.randn(1, TEXT_TOKENS, WIDTH, generator=generator) for n in names}


def context_for(
    spec: GenerationSpec,
    open_ring: Callable[[int], Ring] | None = None,
    facts: Mapping[str, object] = FACTS,
) -> LoopContext:
    """Lend a loop what the runtime would."""
    return LoopContext(
        facts=facts, noise=NoiseStream(seed=spec.seed), open_ring=open_ring or KVPool().open_ring
    )


class _Counting(nn.Module):
    """Counts the calls of each op."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return an operation that counts itself."""
        operation: Callable[..., Mapping[str, object]] = getattr(self, name)

        def counted(**inputs: object) -> Mapping[str, object]:
            self.calls[name] += 1
            return operation(**inputs)

        return counted


class TinyDenoiser(_Counting):
    """Velocity of every token from its channels, the time, the text and the guidance scale."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(CHANNELS, WIDTH)
        self.text = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CHANNELS)

    def predict(
        self,
        latents: torch.Tensor,
        timestep: torch.Tensor,
        prompt_embeds: torch.Tensor | tuple[torch.Tensor, ...],
        guidance: torch.Tensor | None = None,
    ) -> Mapping[str, object]:
        """Return velocity [B, C, T, H, W]; a tuple of embeddings is stacked, a branch each."""
        several = isinstance(prompt_embeds, tuple)
        embeds_BLD = torch.cat(prompt_embeds) if isinstance(prompt_embeds, tuple) else prompt_embeds
        if several:
            latents = latents.expand(len(embeds_BLD), *latents.shape[1:])
        hidden_BLD = self.embed(latents.flatten(2).transpose(1, 2))
        hidden_BLD = hidden_BLD + self.text(embeds_BLD).mean(1, keepdim=True) + _time(timestep)
        if guidance is not None:
            hidden_BLD = hidden_BLD * (1 + 0.1 * guidance)
        velocity_BLC = self.head(torch.tanh(hidden_BLD))
        return {"prediction": velocity_BLC.transpose(1, 2).reshape(latents.shape)}


class TinyLayer(NamedTuple):
    """New keys and values of a layer, each [B, L, N, E]."""

    key_rotated: torch.Tensor
    value: torch.Tensor


class TinyCausal(_Counting):
    """Two attention layers over own tokens and context; ops as a chunk rollout names them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(CHANNELS, WIDTH)
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, CHANNELS)

    def encode_text(self, prompt_embeds: tuple[torch.Tensor, ...]) -> Mapping[str, object]:
        """Return one vector per branch in place of cross-attention K/V."""
        return {"text_kv": (torch.cat(prompt_embeds).mean(1, keepdim=True),)}

    def predict(
        self,
        latents: torch.Tensor,
        timestep: torch.Tensor,
        first_frame: torch.Tensor,
        text_kv: tuple[torch.Tensor, ...],
        context: tuple[LayerContext, ...] | None,
    ) -> Mapping[str, object]:
        """Return velocity [B, C, T, H, W]."""
        hidden_BLD, _ = self._blocks(latents, timestep, first_frame, text_kv, context)
        velocity_BLC = self.head(torch.tanh(hidden_BLD))
        shape = (len(hidden_BLD), *latents.shape[1:])
        return {"prediction": velocity_BLC.transpose(1, 2).reshape(shape)}

    def store(
        self,
        latents: torch.Tensor,
        first_frame: torch.Tensor,
        text_kv: tuple[torch.Tensor, ...],
        context: tuple[LayerContext, ...] | None,
    ) -> Mapping[str, object]:
        """Return the clean block's keys and values."""
        clean = torch.zeros(())
        return {"layers": self._blocks(latents, clean, first_frame, text_kv, context)[1]}

    def _blocks(
        self,
        latents: torch.Tensor,
        timestep: torch.Tensor,
        first_frame: torch.Tensor,
        text_kv: tuple[torch.Tensor, ...],
        context: tuple[LayerContext, ...] | None,
    ) -> tuple[torch.Tensor, tuple[TinyLayer, ...]]:
        stacked = latents.expand(len(text_kv[0]), *latents.shape[1:])
        hidden_BLD = self.embed(stacked.flatten(2).transpose(1, 2)) + text_kv[0] + _time(timestep)
        layers: list[TinyLayer] = []
        for index, qkv in enumerate(self.qkv):
            split = qkv(hidden_BLD).unflatten(2, (3, HEADS, WIDTH // HEADS)).unbind(2)
            query_BLNE, key_BLNE, value_BLNE = split
            layers.append(TinyLayer(key_BLNE + 0.01 * first_frame, value_BLNE))
            keys, values = layers[-1]
            if context is not None:
                keys = torch.cat([context[index].keys_rotated, keys], dim=1)
                values = torch.cat([context[index].values, values], dim=1)
            attended = nn.functional.scaled_dot_product_attention(
                query_BLNE.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
            )
            hidden_BLD = hidden_BLD + attended.transpose(1, 2).flatten(2)
        return hidden_BLD, tuple(layers)


def _time(timestep: torch.Tensor) -> torch.Tensor:
    """Return a feature of the timestep [D]; elementwise, so that batches give equal bits."""
    return torch.sin(timestep.float() / 1000 * torch.arange(1, WIDTH + 1))
