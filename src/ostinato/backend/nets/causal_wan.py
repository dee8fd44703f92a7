"""Causal forward over the modules of the library's Wan: K/V go in and come out as arguments.

The adapter holds no state and changes nothing on the module, so one transformer serves any number
of requests. Frames of one call attend to the context they are given and to each other. Without
context, one call is equal to the library's forward bit for bit (float32, per-token timesteps), and
a batch of N is equal to N calls of one where a sample has at least `EXACT_ROWS` tokens.
"""
# B batch, C channel, T latent frame, H W latent, L token, S token of a frame, N head, E head
# width, D width

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, cast

import torch
from diffusers.models.transformers.transformer_wan import (
    WanTransformer3DModel,
    WanTransformerBlock,
)

from ostinato.backend.nets.kv import (
    ContextKV,
    Embedded,
    Grid,
    LayerKV,
    Projected,
    Segment,
    TextKV,
)
from ostinato.backend.nets.rotary import RotaryTables, rotary_tables, rotate
from ostinato.backend.nets.wan_geometry import wan_geometry
from ostinato.backend.nets.wan_layers import EXACT_ROWS as EXACT_ROWS
from ostinato.backend.nets.wan_layers import (
    add_gated,
    attend,
    embed_timesteps,
    modulate,
    modulation,
    text_kv,
)
from ostinato.backend.taps import Tap, TapPoint, module_taps, wan_transformer_taps
from ostinato.errors import InvalidPlan

Seen: TypeAlias = tuple[slice, TextKV, ContextKV | None]
"""Rows of a stacked call, and the text and the context that they attend to in one layer."""


class CausalWan:
    """Pure functions over one `WanTransformer3DModel`.

    `embed`, `blocks` and `head` compose to `forward`; `project` and `complete` are the two halves
    of a layer, between which an executor may exchange K/V.
    """

    __slots__ = ("_tap", "_transformer", "geometry")

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        """Wrap `transformer`; raises InvalidCheckpoint unless it is a text-to-video Wan."""
        self.geometry = wan_geometry(transformer)
        self._transformer = transformer
        self._tap = TapPoint()

    def encode_text(self, prompt_embeds: torch.Tensor) -> tuple[TextKV, ...]:
        """Compute cross-attention K/V of every layer from [B,Lt,Dtext], once per request."""
        text_BLD = self._transformer.condition_embedder.text_embedder(prompt_embeds)
        return tuple(text_kv(self._block(i).attn2, text_BLD) for i in range(self.num_layers))

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
        """Count of transformer blocks."""
        return self.geometry.num_layers

    def embed(self, latents_BCTHW: torch.Tensor, timesteps_BT: torch.Tensor) -> Embedded:
        """Embed latents and the timestep of every frame."""
        _, _, frames, height, width = latents_BCTHW.shape
        grid = Grid(frames, self.geometry.rows(height), self.geometry.columns(width))
        # The library's convolution rounds a batch differently from its samples.
        patches = [self._transformer.patch_embedding(x) for x in latents_BCTHW.split(1)]
        hidden_BLD = torch.cat(patches).flatten(2).transpose(1, 2).contiguous()
        embedder = self._transformer.condition_embedder
        temb_BTD, modulation_BT6D = embed_timesteps(embedder, timesteps_BT, latents_BCTHW.dtype)
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
        shift, scale = modulation(block, modulation_BT6D, slice(0, 2))
        modulated = modulate(block.norm1, hidden_BLD, shift, scale)
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
        seen: Sequence[Seen],
    ) -> torch.Tensor:
        """Attend to the context, then to the layer's own tokens, and finish the layer."""
        block = self._block(layer)
        gate, *ffn_modulation = modulation(block, modulation_BT6D, slice(2, 6))
        own = projected.kv
        attended = attend(
            block.attn1,
            projected.query_rotated,
            [
                (
                    rows,
                    _after(context and context.keys_rotated, own.key_rotated[rows]),
                    _after(context and context.values, own.value[rows]),
                )
                for rows, _, context in seen
            ],
        )
        hidden_BLD = add_gated(hidden_BLD, attended, gate)
        normed = block.norm2(hidden_BLD.float()).type_as(hidden_BLD)
        query = block.attn2.norm_q(block.attn2.to_q(normed))
        query_BLNE = query.unflatten(2, (self.geometry.num_heads, -1))
        texts = [(rows, text.key, text.value) for rows, text, _ in seen]
        hidden_BLD = hidden_BLD + attend(block.attn2, query_BLNE, texts)
        shift, scale, gate = ffn_modulation
        modulated = modulate(block.norm3, hidden_BLD, shift, scale)
        return add_gated(hidden_BLD, block.ffn(modulated).float(), gate)

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
        segment = Segment(slice(None), text_kv, context)
        return self.blocks_of(start, stop, hidden_BLD, modulation_BT6D, rotary, (segment,))

    def blocks_of(
        self,
        start: int,
        stop: int,
        hidden_BLD: torch.Tensor,
        modulation_BT6D: torch.Tensor,
        rotary: RotaryTables,
        segments: Sequence[Segment],
    ) -> tuple[torch.Tensor, tuple[LayerKV, ...]]:
        """Run layers start..stop-1 over stacked samples: rows together, attention by segment."""
        for segment in segments:
            counts = {len(segment.text_kv), len(segment.context or segment.text_kv)}
            if counts != {stop - start}:
                raise InvalidPlan(
                    f"text or context of {sorted(counts)} layers; {stop - start} layers are run"
                )
        new_kv: list[LayerKV] = []
        for index, layer in enumerate(range(start, stop)):
            projected = self.project(layer, hidden_BLD, modulation_BT6D, rotary)
            seen = [(s.rows, s.text_kv[index], s.seen(index)) for s in segments]
            hidden_BLD = self.complete(layer, hidden_BLD, modulation_BT6D, projected, seen)
            self._tap(f"blocks.{layer}", hidden_BLD)
            new_kv.append(projected.kv)
        return hidden_BLD, tuple(new_kv)

    def head(self, hidden_BLD: torch.Tensor, temb_BTD: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Return the velocity [B,C,T,H,W]."""
        transformer, geometry = self._transformer, self.geometry
        table = transformer.scale_shift_table.unsqueeze(0) + temb_BTD.unsqueeze(2)
        shift, scale = table.unsqueeze(3).unbind(2)
        modulated = modulate(transformer.norm_out, hidden_BLD, shift, scale)
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
        segments = (Segment(slice(None), text_kv, context),)
        return self.forward_of(latents_BCTHW, timesteps_BT, positions, segments)

    def forward_kv(
        self,
        latents_BCTHW: torch.Tensor,
        timesteps_BT: torch.Tensor,
        positions: torch.Tensor,
        text_kv: Sequence[TextKV],
        context: Sequence[ContextKV | None] | None = None,
    ) -> tuple[LayerKV, ...]:
        """Return only the new K/V of every layer: the store pass of a finished block."""
        segments = (Segment(slice(None), text_kv, context),)
        return self.forward_kv_of(latents_BCTHW, timesteps_BT, positions, segments)

    def forward_of(
        self,
        latents_BCTHW: torch.Tensor,
        timesteps_BT: torch.Tensor,
        positions: torch.Tensor,
        segments: Sequence[Segment],
    ) -> tuple[torch.Tensor, tuple[LayerKV, ...]]:
        """Run `forward` for the samples of several requests at once; positions int64 [B,T]."""
        embedded = self.embed(latents_BCTHW, timesteps_BT)
        hidden, new_kv = self._all_blocks(embedded, latents_BCTHW, positions, segments)
        return self.head(hidden, embedded.temb, embedded.grid), new_kv

    def forward_kv_of(
        self,
        latents_BCTHW: torch.Tensor,
        timesteps_BT: torch.Tensor,
        positions: torch.Tensor,
        segments: Sequence[Segment],
    ) -> tuple[LayerKV, ...]:
        """Run `forward_kv` for the samples of several requests at once."""
        embedded = self.embed(latents_BCTHW, timesteps_BT)
        return self._all_blocks(embedded, latents_BCTHW, positions, segments)[1]

    @contextmanager
    def observe(self, tap: Tap) -> Generator[None, None, None]:
        """Call `tap` with what the modules and the blocks give, while the context is open."""
        names = wan_transformer_taps(self.num_layers, whole_blocks=False)
        with module_taps(self._transformer, names, tap), self._tap.observe(tap):
            yield

    def _all_blocks(
        self,
        embedded: Embedded,
        latents_BCTHW: torch.Tensor,
        positions: torch.Tensor,
        segments: Sequence[Segment],
    ) -> tuple[torch.Tensor, tuple[LayerKV, ...]]:
        rotary = self.rotary(positions, *latents_BCTHW.shape[-2:])
        hidden, modulation = embedded.hidden_states, embedded.modulation
        return self.blocks_of(0, self.num_layers, hidden, modulation, rotary, segments)

    def _block(self, layer: int) -> WanTransformerBlock:
        return cast(WanTransformerBlock, self._transformer.blocks[layer])


def _after(context: torch.Tensor | None, own: torch.Tensor) -> torch.Tensor:
    """Put a layer's own keys or values, [B,L,N,E], after those of its context."""
    return own if context is None else torch.cat((context, own), dim=1)
