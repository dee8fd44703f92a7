"""The pieces of a Wan layer over the library's modules: modulation, gates, attention."""
# B batch, T latent frame, L token, S token of a frame, N head, E head width, D width

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanTimeTextImageEmbedding,
    WanTransformerBlock,
)
from torch import nn

from ostinato.backend.nets.kv import TextKV

# A float32 linear of few rows takes another kernel, which rounds differently. Measured with MKL
# 2024.2 on AVX-512 over input widths 16..1536: rows below 2 at width 32, 6 at 128, 11 at 256 and
# 16 from 384 up differ from the same rows in a larger call; from 16 rows on they never did.
EXACT_ROWS = 16


def text_kv(attn: WanAttention, text_BLD: torch.Tensor) -> TextKV:
    """Compute a layer's cross-attention keys and values of embedded text [B,Lt,D]."""
    heads = (attn.heads, -1)
    key = attn.norm_k(attn.to_k(text_BLD)).unflatten(2, heads)
    return TextKV(key, attn.to_v(text_BLD).unflatten(2, heads))


def modulation(
    block: WanTransformerBlock, modulation_BT6D: torch.Tensor, rows: slice
) -> tuple[torch.Tensor, ...]:
    """Return the named rows of the float32 modulation, each [B,T,1,D]."""
    table = block.scale_shift_table[:, rows] + modulation_BT6D[:, :, rows].float()
    return table.unsqueeze(3).unbind(2)


def modulate(
    norm: nn.Module, hidden_BLD: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Norm tokens, then scale and shift each frame's by its own [B,T,1,D]; returns [B,L,D]."""
    normed_BTSD = norm(hidden_BLD.float()).unflatten(1, (shift.shape[1], -1))
    return (normed_BTSD * (1 + scale) + shift).flatten(1, 2).type_as(hidden_BLD)


def add_gated(
    hidden_BLD: torch.Tensor, update_BLD: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    """Add an update, each frame's times its own gate [B,T,1,D]; returns [B,L,D]."""
    gated = update_BLD.unflatten(1, (gate.shape[1], -1)) * gate
    return (hidden_BLD.float() + gated.flatten(1, 2)).type_as(hidden_BLD)


def attend(
    attn: WanAttention,
    query_BLNE: torch.Tensor,
    seen: Sequence[tuple[slice, torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Attend and project out; the very call that the library's native backend makes.

    seen: for the samples of each slice the keys and values, [b,Lk,N,E], that they attend to. Each
    slice attends by itself, in the shapes that it has alone; the projection takes all rows.
    """
    parts = [_attention(query_BLNE[rows], key, value) for rows, key, value in seen]
    attended_BLD = parts[0] if len(parts) == 1 else torch.cat(parts)
    return attn.to_out[1](attn.to_out[0](attended_BLD))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    query, key, value = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value).permute(0, 2, 1, 3)
    return attended.flatten(2, 3).type_as(query)


def embed_timesteps(
    embedder: WanTimeTextImageEmbedding, timesteps_BT: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Embed every frame's timestep; returns temb [B,T,D] and modulation [B,T,6,D].

    Padded to `EXACT_ROWS` rows, so that the bits do not depend on how many frames are asked for.
    """
    rows = timesteps_BT.numel()
    padded = F.pad(timesteps_BT.flatten(), (0, max(0, EXACT_ROWS - rows)))
    weight_dtype = next(iter(embedder.time_embedder.parameters())).dtype
    temb = embedder.time_embedder(embedder.timesteps_proj(padded).to(weight_dtype)).to(dtype)
    modulation_rows = embedder.time_proj(embedder.act_fn(temb))
    shape = timesteps_BT.shape
    return (
        temb[:rows].unflatten(0, shape),
        modulation_rows[:rows].unflatten(1, (6, -1)).unflatten(0, shape),
    )
