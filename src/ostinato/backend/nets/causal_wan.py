"""Causal forward over the modules of the library's Wan: K/V go in and come out as arguments.

The adapter holds no state and changes nothing on the module, so one transformer serves any number
of requests. Frames of one call attend to the context they are given and to each other. Without
context, one call is equal to the library's forward bit for bit (float32, per-token timesteps), and
a batch of N is equal to N calls of one where a sample has at least `EXACT_ROWS` tokens.
"""
# B batch, C channel, T latent frame, H W latent, L token, S token of a frame, N head, E head
# width, D width

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanTransformer3DModel,
    WanTransformerBlock,
)
from torch import nn

from ostinato.backend.nets.kv import ContextKV, Embedded, Grid, LayerKV, Projected, TextKV
from ostinato.backend.nets.rotary import RotaryTables, rotary_tables, rotate
from ostinato.backend.nets.wan_geometry import wan_geometry

# A float32 linear of few rows takes another kernel, which rounds differently. Measured with MKL
# 2024.2 on AVX-512 over input widths 16..1536: rows below 2 at width 32, 6 at 128, 11 at 256 and
# 16 from 384 up differ from the same rows in a larger call; from 16 rows on they never did.
EXACT_ROWS = 16


class CausalWan:
    """Pure functions over one `WanTransformer3DModel`.

    `embed`, `blocks` and `head` compose to `forward`; `project` and `complete` are the two halves
    of a layer, between which an executor may exchange K/V.
    """

    __slots__ = ("_transformer", "geometry")

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        """Wrap `transformer`; raises InvalidCheckpoint unless it is a text-to-video Wan."""
        self.geometry = wan_geometry(transformer)
        self._transformer = transformer

    def encode_text(self, prompt_embeds: torch.Tensor) -> tuple[TextKV, ...]:
        """Compute cross-attention K/V of every layer from [B,Lt,Dtext], once per request."""
        text_BLD = self._transformer.condition_embedder.text_embedder(prompt_embeds)
        return tuple(_text_kv(self._block(i).attn2, text_BLD) for i in range(self.num_layers))

    def rotary(self, positions: torch.Tensor, height: int, width: int) -> RotaryTables:
        """Compute tables for latent frames at absolute `positions` int64 [T] or [B,T]."""
        geometry = self.geometry
        return rotary_tables(
            positions,
            rows=geometry.rows(height),
            columns=geometry.columns(width),
            head_dim=geometry.head_dim,
        )

    @property
    def num_layers(self) -> int:
        return self.geometry.num_layers

    def embed(self, latents_BCTHW: torch.Tensor, timesteps_BT: torch.Tensor) -> Embedded:
        """Embed latents and the timestep of every frame."""
        _, _, frames, height, width = latents_BCTHW.shape
        grid = Grid(frames, self.geometry.rows(height), self.geometry.columns(width))
        # The library's convolution rounds a batch differently from its samples.
        patches = [self._transformer.patch_embedding(x) for x in latents_BCTHW.split(1)]
        hidden_BLD = torch.cat(patches).flatten(2).transpose(1, 2).contiguous()
        temb_BTD, modulation_BT6D = self._embed_timesteps(timesteps_BT, latents_BCTHW.dtype)
        return Embedded(hidden_BLD, temb_BTD, modulation_BT6D, grid)

    def project(
        self,
        layer: int,
        hidden_BLD: torch.Tensor,
        modulation_BT6D: torch.Tensor,
        rotary: RotaryTables,
    ) -> Projected:
        """Compute the query and the new K/V of a layer."""
        block = self._block(layer)
        shift, scale = _modulation(block, modulation_BT6D, slice(0, 2))
        modulated = _modulate(block.norm1, hidden_BLD, shift, scale)
        attn, heads = block.attn1, (self.geometry.num_heads, -1)
        query = attn.norm_q(attn.to_q(modulated)).unflatten(2, heads)
        key = attn.norm_k(attn.to_k(modulated)).unflatten(2, heads)
        value = attn.to_v(modulated).unflatten(2, heads)
        kv = LayerKV(key_rotated=rotate(key, *rotary), key_raw=key, value=value)
        return Projected(rotate(query, *rotary), kv)

    def complete(
        self,
        layer: int,
        hidden_BLD: torch.Tensor,
        modulation_BT6D: torch.Tensor,
        projected: Projected,
        text_kv: TextKV,
        context: ContextKV | None,
    ) -> torch.Tensor:
        """Attend to `context`, then to the layer's own tokens, and finish the layer."""
        block = self._block(layer)
        gate, *ffn_modulation = _modulation(block, modulation_BT6D, slice(2, 6))
        key, value = projected.kv.key_rotated, projected.kv.value
        if context is not None:
            key = torch.cat((context.keys_rotated, key), dim=1)
            value = torch.cat((context.values, value), dim=1)
        attended = _attend(block.attn1, projected.query_rotated, key, value)
        hidden_BLD = _add_gated(hidden_BLD, attended, gate)
        normed = block.norm2(hidden_BLD.float()).type_as(hidden_BLD)
        query = block.attn2.norm_q(block.attn2.to_q(normed))
        query_BLNE = query.unflatten(2, (self.geometry.num_heads, -1))
        hidden_BLD = hidden_BLD + _attend(block.attn2, query_BLNE, *text_kv)
        shift, scale, gate = ffn_modulation
        modulated = _modulate(block.norm3, hidden_BLD, shift, scale)
        return _add_gated(hidden_BLD, block.ffn(modulated).float(), gate)

    def blocks(
        self,
        start: int,
        stop: int,
        hidden_BLD: torch.Tensor,
        modulation_BT6D: torch.Tensor,
        rotary: RotaryTables,
        text_kv: Sequence[TextKV],
        context: Sequence[ContextKV | None] | None = None,
    ) -> tuple[torch.Tensor, tuple[LayerKV, ...]]:
        """Run layers start..stop-1; `text_kv` and `context` hold one entry for each of them."""
        layers = range(start, stop)
        contexts = [None] * len(layers) if context is None else context
        new_kv: list[LayerKV] = []
        for layer, text, seen in zip(layers, text_kv, contexts, strict=True):
            projected = self.project(layer, hidden_BLD, modulation_BT6D, rotary)
            hidden_BLD = self.complete(layer, hidden_BLD, modulation_BT6D, projected, text, seen)
            new_kv.append(projected.kv)
        return hidden_BLD, tuple(new_kv)

    def head(self, hidden_BLD: torch.Tensor, temb_BTD: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Return the velocity [B,C,T,H,W]."""
        transformer, geometry = self._transformer, self.geometry
        table = transformer.scale_shift_table.unsqueeze(0) + temb_BTD.unsqueeze(2)
        shift, scale = table.unsqueeze(3).unbind(2)
        modulated = _modulate(transformer.norm_out, hidden_BLD, shift, scale)
        patches = transformer.proj_out(modulated).unflatten(1, grid)
        patches = patches.unflatten(4, (geometry.patch_height, geometry.patch_width, -1))
        return patches.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)

    def forward(
        self,
        latents_BCTHW: torch.Tensor,
        timesteps_BT: torch.Tensor,
        positions: torch.Tensor,
        text_kv: Sequence[TextKV],
        context: Sequence[ContextKV | None] | None = None,
    ) -> tuple[torch.Tensor, tuple[LayerKV, ...]]:
        """Return the velocity [B,C,T,H,W] and the new K/V of every layer."""
        embedded = self.embed(latents_BCTHW, timesteps_BT)
        hidden, new_kv = self._all_blocks(embedded, latents_BCTHW, positions, text_kv, context)
        return self.head(hidden, embedded.temb, embedded.grid), new_kv

    def forward_kv(
        self,
        latents_BCTHW: torch.Tensor,
        timesteps_BT: torch.Tensor,
        positions: torch.Tensor,
        text_kv: Sequence[TextKV],
        context: Sequence[ContextKV | None] | None = None,
    ) -> tuple[LayerKV, ...]:
        """Return only the new K/V of every layer: the store pass of a finished block."""
        embedded = self.embed(latents_BCTHW, timesteps_BT)
        return self._all_blocks(embedded, latents_BCTHW, positions, text_kv, context)[1]

    def _all_blocks(
        self,
        embedded: Embedded,
        latents_BCTHW: torch.Tensor,
        positions: torch.Tensor,
        text_kv: Sequence[TextKV],
        context: Sequence[ContextKV | None] | None,
    ) -> tuple[torch.Tensor, tuple[LayerKV, ...]]:
        rotary = self.rotary(positions, *latents_BCTHW.shape[-2:])
        return self.blocks(
            0,
            self.num_layers,
            embedded.hidden_states,
            embedded.modulation,
            rotary,
            text_kv,
            context,
        )

    def _embed_timesteps(
        self, timesteps_BT: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        embedder = self._transformer.condition_embedder
        rows = timesteps_BT.numel()
        padded = F.pad(timesteps_BT.flatten(), (0, max(0, EXACT_ROWS - rows)))
        weight_dtype = next(iter(embedder.time_embedder.parameters())).dtype
        temb = embedder.time_embedder(embedder.timesteps_proj(padded).to(weight_dtype)).to(dtype)
        modulation = embedder.time_proj(embedder.act_fn(temb))
        shape = timesteps_BT.shape
        return (
            temb[:rows].unflatten(0, shape),
            modulation[:rows].unflatten(1, (6, -1)).unflatten(0, shape),
        )

    def _block(self, layer: int) -> WanTransformerBlock:
        return cast(WanTransformerBlock, self._transformer.blocks[layer])


def _text_kv(attn: WanAttention, text_BLD: torch.Tensor) -> TextKV:
    heads = (attn.heads, -1)
    key = attn.norm_k(attn.to_k(text_BLD)).unflatten(2, heads)
    return TextKV(key, attn.to_v(text_BLD).unflatten(2, heads))


def _modulation(
    block: WanTransformerBlock, modulation_BT6D: torch.Tensor, rows: slice
) -> tuple[torch.Tensor, ...]:
    """Return the named rows of the float32 modulation, each [B,T,1,D]."""
    table = block.scale_shift_table[:, rows] + modulation_BT6D[:, :, rows].float()
    return table.unsqueeze(3).unbind(2)


def _modulate(
    norm: nn.Module, hidden_BLD: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    normed_BTSD = norm(hidden_BLD.float()).unflatten(1, (shift.shape[1], -1))
    return (normed_BTSD * (1 + scale) + shift).flatten(1, 2).type_as(hidden_BLD)


def _add_gated(
    hidden_BLD: torch.Tensor, update_BLD: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    gated = update_BLD.unflatten(1, (gate.shape[1], -1)) * gate
    return (hidden_BLD.float() + gated.flatten(1, 2)).type_as(hidden_BLD)


def _attend(
    attn: WanAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Attend and project out; the very call that the library's native backend makes."""
    query, key, value = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value).permute(0, 2, 1, 3)
    attended_BLD = attended.flatten(2, 3).type_as(query)
    return attn.to_out[1](attn.to_out[0](attended_BLD))
