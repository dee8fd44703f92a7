"""Stack samples of the library's Wan so that each keeps the bits it has alone.

The library's own forward of a batch differs from its forwards of one: the patch convolution and
the one-row linears of the time embedding round differently. Here those run sample by sample. The
blocks, attention included, and the head are run for all samples at once, where `StackRules` allow
it at these shapes. The modules are the library's; only the order of calls is ours.
"""
# B batch, C channel, T latent frame, H W latent, L token, D width

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from diffusers.models.transformers.transformer_wan import (
    WanTransformer3DModel,
    WanTransformerBlock,
)

from ostinato.backend.batch_rules import StackRules
from ostinato.backend.nets.wan_shapes import whole_shapes


class WanSample(NamedTuple):
    """What one forward takes: latents [1,C,T,H,W], timestep [1], prompt_embeds [1,Lt,D]."""

    latents: torch.Tensor
    timestep: torch.Tensor
    prompt_embeds: torch.Tensor


def can_stack(
    transformer: WanTransformer3DModel, samples: Sequence[WanSample], rules: StackRules
) -> bool:
    """Tell whether the rules allow a stack of these samples, all of one shape.

    The shapes of the blocks, attention among them, are asked for.
    """
    config, sample = transformer.config, samples[0]
    patch_frames, patch_height, patch_width = config["patch_size"]
    _, _, frames, height, width = sample.latents.shape
    tokens = (frames // patch_frames) * (height // patch_height) * (width // patch_width)
    text_only = config["image_dim"] is None and sample.timestep.ndim == 1
    shapes = whole_shapes(
        transformer,
        tokens=tokens,
        text_tokens=sample.prompt_embeds.shape[1],
        dtype=sample.latents.dtype,
    )
    return text_only and rules.stacks(shapes, len(samples))


def stacked_forward(
    transformer: WanTransformer3DModel, samples: Sequence[WanSample]
) -> tuple[torch.Tensor, ...]:
    """Return the velocity [1,C,T,H,W] of each sample; all have equal shapes."""
    embedder = transformer.condition_embedder
    rotary = transformer.rope(samples[0].latents)
    # Sample by sample: convolutions and linears of one row.
    hidden = [transformer.patch_embedding(s.latents).flatten(2).transpose(1, 2) for s in samples]
    conditions = [embedder(s.timestep, s.prompt_embeds, None) for s in samples]
    temb_BD = torch.cat([temb for temb, _, _, _ in conditions])
    modulation_B6D = torch.cat([proj for _, proj, _, _ in conditions]).unflatten(1, (6, -1))
    text_BLD = torch.cat([text for _, _, text, _ in conditions])
    hidden_BLD = torch.cat(hidden)
    for block in transformer.blocks:
        run = cast("WanTransformerBlock", block)
        hidden_BLD = run(hidden_BLD, text_BLD, modulation_B6D, rotary)
    shift, scale = (transformer.scale_shift_table + temb_BD.unsqueeze(1)).chunk(2, dim=1)
    normed = (transformer.norm_out(hidden_BLD.float()) * (1 + scale) + shift).type_as(hidden_BLD)
    return _unpatched(transformer, transformer.proj_out(normed), samples[0].latents.shape)


def _unpatched(
    transformer: WanTransformer3DModel, patches_BLD: torch.Tensor, shape: torch.Size
) -> tuple[torch.Tensor, ...]:
    patch = transformer.config["patch_size"]
    grid = [size // step for size, step in zip(shape[2:], patch, strict=True)]
    cut = patches_BLD.reshape(len(patches_BLD), *grid, *patch, -1)
    # [B, T, H, W, pt, ph, pw, C] -> [B, C, T, pt, H, ph, W, pw]
    whole = cut.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
    return whole.split(1)
