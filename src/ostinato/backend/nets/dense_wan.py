"""The whole sequence of a causal Wan in one masked call: the training forward.

It computes what `CausalWan` computes block by block, but as one graph without the float32 round
trips of the served form, under autograd and bfloat16 autocast.
"""
# B batch, C channel, T latent frame, H W latent, L token, S token of a frame, N head, E head
# width, D width

from __future__ import annotations

from typing import Literal, Protocol, cast

import torch
import torch.nn.functional as F
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanTransformer3DModel,
    WanTransformerBlock,
)

from ostinato.backend.nets.norm_rotate import WideRotary, norm_rotate, widen
from ostinato.backend.nets.rotary import rotary_tables
from ostinato.backend.nets.wan_geometry import WanGeometry, wan_geometry

DenseAttention = Literal["sdpa", "matmul"]


class DenseBlock(Protocol):
    """`dense_block`, or what torch.compile makes of it."""

    def __call__(
        self,
        block: WanTransformerBlock,
        hidden_BTSD: torch.Tensor,
        modulation_BT6D: torch.Tensor,
        rotary: WideRotary,
        text_BLD: torch.Tensor,
        bias_LL: torch.Tensor,
        attention: DenseAttention,
    ) -> torch.Tensor: ...


def block_causal_mask(
    num_frames: int,
    frames_per_block: int,
    window_blocks: int | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return bool [T,T]: True where frame row may attend to frame column.

    A frame sees its own block and earlier ones; with `window_blocks` only the last that many
    blocks, its own included.
    """
    block_T = torch.arange(num_frames, device=device) // frames_per_block
    age_TT = block_T[:, None] - block_T[None, :]
    mask_TT = age_TT >= 0
    return mask_TT if window_blocks is None else mask_TT & (age_TT < window_blocks)


def dense_forward(
    transformer: WanTransformer3DModel,
    latents_BCTHW: torch.Tensor,
    timesteps_BT: torch.Tensor,
    prompt_embeds: torch.Tensor,
    positions: torch.Tensor,
    block_mask: torch.Tensor,
    *,
    attention: DenseAttention = "matmul",
    block_forward: DenseBlock | None = None,
) -> torch.Tensor:
    """Return the velocity [B,C,T,H,W] of all frames, each at its own timestep.

    `positions` is int64 [T] or [B,T]. `block_mask` is bool [T,T] or [L,L], True where a query (row)
    may attend to a key (column). `attention` "matmul" is faster forward and backward than "sdpa" in
    bfloat16 on a CPU. `block_forward` takes a compiled `dense_block`: all layers share one graph,
    so compilation costs one layer. Raises InvalidCheckpoint unless `transformer` is T2V.
    """
    geometry = wan_geometry(transformer)
    rows, columns = (
        geometry.rows(latents_BCTHW.shape[-2]),
        geometry.columns(latents_BCTHW.shape[-1]),
    )
    dtype = _activation_dtype(latents_BCTHW)
    tables = rotary_tables(positions, rows=rows, columns=columns, head_dim=geometry.head_dim)
    rotary = widen(tables, num_heads=geometry.num_heads, dtype=dtype)
    hidden_BTSD = _patch_embed(transformer, geometry, latents_BCTHW.to(dtype))
    temb_BTD, modulation_BT6D = _time_embed(transformer, timesteps_BT)
    text_BLD = transformer.condition_embedder.text_embedder(prompt_embeds.to(dtype))
    bias_LL = _additive(block_mask, hidden_BTSD.shape[1] * rows * columns, dtype)
    run_block = dense_block if block_forward is None else block_forward
    for block in transformer.blocks:
        hidden_BTSD = run_block(
            cast(WanTransformerBlock, block),
            hidden_BTSD,
            modulation_BT6D,
            rotary,
            text_BLD,
            bias_LL,
            attention,
        )
    patches = _head(transformer, hidden_BTSD, temb_BTD)
    patches = patches.unflatten(3, (geometry.patch_height, geometry.patch_width, -1))
    patches = patches.unflatten(2, (rows, columns))
    return patches.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)


def _activation_dtype(latents: torch.Tensor) -> torch.dtype:
    device = latents.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else latents.dtype


def _patch_embed(
    transformer: WanTransformer3DModel, geometry: WanGeometry, latents_BCTHW: torch.Tensor
) -> torch.Tensor:
    """Embed patches by one linear: the convolution's stride is its kernel."""
    conv = transformer.patch_embedding
    patches = latents_BCTHW.unflatten(-1, (-1, geometry.patch_width))
    patches = patches.unflatten(-3, (-1, geometry.patch_height))
    patches = patches.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(2, 3)
    return F.linear(patches, conv.weight.flatten(1), conv.bias)


def _time_embed(
    transformer: WanTransformer3DModel, timesteps_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    embedder = transformer.condition_embedder
    frequencies = embedder.timesteps_proj(timesteps_BT.flatten())
    temb = embedder.time_embedder(frequencies).unflatten(0, timesteps_BT.shape)
    return temb, embedder.time_proj(embedder.act_fn(temb)).unflatten(-1, (6, -1))


def _additive(block_mask: torch.Tensor, num_tokens: int, dtype: torch.dtype) -> torch.Tensor:
    repeats = num_tokens // block_mask.shape[-1]
    mask_LL = block_mask.repeat_interleave(repeats, dim=0).repeat_interleave(repeats, dim=1)
    return torch.zeros_like(mask_LL, dtype=dtype).masked_fill(~mask_LL, float("-inf"))


def dense_block(
    block: WanTransformerBlock,
    hidden_BTSD: torch.Tensor,
    modulation_BT6D: torch.Tensor,
    rotary: WideRotary,
    text_BLD: torch.Tensor,
    bias_LL: torch.Tensor,
    attention: DenseAttention,
) -> torch.Tensor:
    """Run one layer over the whole sequence, hidden_states [B,T,S,D]."""
    table = (block.scale_shift_table + modulation_BT6D).to(hidden_BTSD.dtype)
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = table.unsqueeze(3).unbind(2)
    modulated = torch.addcmul(shift, _layer_norm(block.norm1, hidden_BTSD), 1 + scale)
    tokens = modulated.flatten(1, 2)
    attended = _attention(block.attn1, tokens, tokens, rotary, bias_LL, attention)
    hidden_BTSD = torch.addcmul(hidden_BTSD, attended.view_as(hidden_BTSD), gate)
    normed = hidden_BTSD
    if isinstance(block.norm2, torch.nn.LayerNorm):
        normed = _layer_norm(block.norm2, hidden_BTSD)
    attended = _attention(block.attn2, normed.flatten(1, 2), text_BLD, None, None, attention)
    hidden_BTSD = hidden_BTSD + attended.view_as(hidden_BTSD)
    modulated = torch.addcmul(ffn_shift, _layer_norm(block.norm3, hidden_BTSD), 1 + ffn_scale)
    return torch.addcmul(hidden_BTSD, block.ffn(modulated), ffn_gate)


def _layer_norm(norm: torch.nn.LayerNorm, hidden_states: torch.Tensor) -> torch.Tensor:
    weight, bias = norm.weight, norm.bias
    if weight is not None:
        weight, bias = weight.to(hidden_states.dtype), bias.to(hidden_states.dtype)
    return F.layer_norm(hidden_states, norm.normalized_shape, weight, bias, norm.eps)


def _attention(
    attn: WanAttention,
    hidden_BLD: torch.Tensor,
    seen_BLD: torch.Tensor,
    rotary: WideRotary | None,
    bias_LL: torch.Tensor | None,
    attention: DenseAttention,
) -> torch.Tensor:
    """Attend from tokens to those that are seen: themselves, turned and masked, or the text."""
    heads = (attn.heads, -1)
    query = _norm(attn.norm_q, attn.to_q(hidden_BLD), rotary).unflatten(2, heads)
    key = _norm(attn.norm_k, attn.to_k(seen_BLD), rotary).unflatten(2, heads)
    value = attn.to_v(seen_BLD).unflatten(2, heads)
    return attn.to_out[0](_attend(query, key, value, bias_LL, attention))


def _norm(
    norm: torch.nn.RMSNorm, hidden_BLD: torch.Tensor, rotary: WideRotary | None
) -> torch.Tensor:
    return norm_rotate(hidden_BLD, norm.weight, cast(float, norm.eps), rotary)


def _attend(
    query_BLNE: torch.Tensor,
    key_BLNE: torch.Tensor,
    value_BLNE: torch.Tensor,
    bias_LL: torch.Tensor | None,
    attention: DenseAttention,
) -> torch.Tensor:
    """Return [B,L,D]."""
    query, key, value = (x.transpose(1, 2) for x in (query_BLNE, key_BLNE, value_BLNE))
    if attention == "sdpa":
        bias = None if bias_LL is None else bias_LL.to(query.dtype)
        out = F.scaled_dot_product_attention(query, key, value, bias)
        return out.transpose(1, 2).flatten(2)
    batch, heads, _, head_dim = query.shape
    query, key, value = (x.flatten(0, 1) for x in (query, key, value))
    scale = head_dim**-0.5
    if bias_LL is None:
        scores = torch.bmm(query, key.transpose(1, 2)) * scale
    else:
        scores = torch.baddbmm(bias_LL, query, key.transpose(1, 2), alpha=scale)
    out = torch.bmm(scores.softmax(-1).to(value.dtype), value)
    return out.unflatten(0, (batch, heads)).transpose(1, 2).flatten(2)


def _head(
    transformer: WanTransformer3DModel, hidden_BTSD: torch.Tensor, temb_BTD: torch.Tensor
) -> torch.Tensor:
    table = (transformer.scale_shift_table + temb_BTD.unsqueeze(2)).to(hidden_BTSD.dtype)
    shift, scale = table.unsqueeze(3).unbind(2)
    modulated = torch.addcmul(shift, _layer_norm(transformer.norm_out, hidden_BTSD), 1 + scale)
    return transformer.proj_out(modulated)
