"""The modulated diffusion transformer of Wan in float64.

One description serves both ways of driving it: the stock forward, where a sample has one timestep
and its tokens see each other, and the causal one, where every frame has a timestep of its own and
keys and values of earlier frames come as arguments.
"""
# B batch, F group of tokens with one timestep, T latent frame, H W latent, L token, S token of a
# group, N head, E head width, D width, R row

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ostinato.backend.reference.arrays import Array, Emit, KeyValue
from ostinato.backend.reference.convolution import patch_embed
from ostinato.backend.reference.ops import (
    attention,
    gelu_tanh,
    join_heads,
    layer_norm,
    linear,
    rms_norm,
    silu,
    split_heads,
    timestep_embedding,
)
from ostinato.backend.reference.rotary import RotaryAngles, rotary_angles, rotate
from ostinato.backend.reference.wan_weights import (
    AttentionWeights,
    BlockWeights,
    WanSizes,
    WanWeights,
)

EMBEDDER = "condition_embedder"


class OwnKV(NamedTuple):
    """A layer's keys, turned to their positions and not, and its values, each [B,L,N,E]."""

    key_rotated: Array
    key_raw: Array
    value: Array


class ReferenceWan:
    """Pure functions over one set of weights; each emits what the library's modules would give."""

    def __init__(self, sizes: WanSizes, weights: WanWeights) -> None:
        """Take what `read_wan` read."""
        self.sizes = sizes
        self.weights = weights

    def embed_patches(self, latents_BCTHW: Array, emit: Emit) -> Array:
        """Embed each patch of latents [B,C,T,H,W] as a token; returns [B,L,D]."""
        patches_BDTHW = patch_embed(latents_BCTHW, self.weights.patch_embedding)
        emit("patch_embedding", patches_BDTHW)
        return np.swapaxes(patches_BDTHW.reshape(*patches_BDTHW.shape[:2], -1), 1, 2)

    def embed_timesteps(self, timesteps_R: Array, emit: Emit) -> tuple[Array, Array]:
        """Embed timesteps [R]; returns temb [R,D] and the modulation of the blocks [R,6,D]."""
        weights = self.weights
        hidden_RD = linear(timestep_embedding(timesteps_R, self.sizes.freq_dim), weights.time_in)
        temb_RD = linear(silu(hidden_RD), weights.time_out)
        emit(f"{EMBEDDER}.time_embedder", temb_RD)
        modulation = linear(silu(temb_RD), weights.time_proj)
        emit(f"{EMBEDDER}.time_proj", modulation)
        return temb_RD, modulation.reshape(len(timesteps_R), 6, -1)

    def encode_text(self, prompt_embeds_BLD: Array, emit: Emit) -> tuple[KeyValue, ...]:
        """Compute every layer's keys and values of the text [B,L,D]."""
        hidden = gelu_tanh(linear(prompt_embeds_BLD, self.weights.text_in))
        text_BLD = linear(hidden, self.weights.text_out)
        emit(f"{EMBEDDER}.text_embedder", text_BLD)
        return tuple(self._key_value(block.attn2, text_BLD) for block in self.weights.blocks)

    def rotary(self, positions: Array, height: int, width: int) -> RotaryAngles:
        """Compute the angles of latent frames at `positions` [T] or [B,T]."""
        return rotary_angles(
            positions,
            rows=height // self.sizes.patch_height,
            columns=width // self.sizes.patch_width,
            head_dim=self.sizes.head_dim,
        )

    def blocks(
        self,
        hidden_BLD: Array,
        modulation_BF6D: Array,
        angles: RotaryAngles,
        text_kv: tuple[KeyValue, ...],
        context: tuple[KeyValue | None, ...],
        emit: Emit,
    ) -> tuple[Array, tuple[OwnKV, ...]]:
        """Run all layers; returns hidden states [B,L,D] and each layer's new keys and values.

        `text_kv` and `context` hold one entry for each layer; tokens attend to the context first.
        """
        layers: list[OwnKV] = []
        for layer, block in enumerate(self.weights.blocks):
            hidden_BLD, own = self._block(
                f"blocks.{layer}",
                block,
                hidden_BLD,
                _rows(block.table, modulation_BF6D),
                angles,
                text_kv[layer],
                context[layer],
                emit,
            )
            layers.append(own)
        return hidden_BLD, tuple(layers)

    def head(
        self, hidden_BLD: Array, temb_BFD: Array, height: int, width: int, emit: Emit
    ) -> Array:
        """Return the velocity [B,C,T,H,W] of latents of this height and width."""
        sizes = self.sizes
        shift, scale = _rows(self.weights.table, temb_BFD[:, :, None])
        modulated = _modulate(layer_norm(hidden_BLD, sizes.eps), shift, scale)
        patches_BLP = linear(modulated, self.weights.proj_out)
        emit("proj_out", patches_BLP)
        rows, columns = height // sizes.patch_height, width // sizes.patch_width
        patch = (sizes.patch_height, sizes.patch_width, sizes.out_channels)
        cut = patches_BLP.reshape(len(patches_BLP), -1, rows, columns, *patch)
        # [B,T,rows,columns,h,w,C] -> [B,C,T,rows,h,columns,w]
        laid = cut.transpose(0, 6, 1, 2, 4, 3, 5)
        return laid.reshape(*laid.shape[:3], height, width)

    def _block(
        self,
        name: str,
        block: BlockWeights,
        hidden_BLD: Array,
        rows: tuple[Array, ...],
        angles: RotaryAngles,
        text_kv: KeyValue,
        context: KeyValue | None,
        emit: Emit,
    ) -> tuple[Array, OwnKV]:
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = rows
        eps = self.sizes.eps
        modulated = _modulate(layer_norm(hidden_BLD, eps), shift, scale)
        key, value = self._key_value(block.attn1, modulated)
        own = OwnKV(rotate(key, angles), key, value)
        query = rotate(self._query(block.attn1, modulated), angles)
        attended = self._attend(f"{name}.attn1", block.attn1, query, _joined(context, own), emit)
        hidden_BLD = hidden_BLD + _gated(attended, gate)

        normed = hidden_BLD if block.norm2 is None else layer_norm(hidden_BLD, eps, block.norm2)
        query = self._query(block.attn2, normed)
        hidden_BLD = hidden_BLD + self._attend(f"{name}.attn2", block.attn2, query, text_kv, emit)

        modulated = _modulate(layer_norm(hidden_BLD, eps), ffn_shift, ffn_scale)
        update_BLD = linear(gelu_tanh(linear(modulated, block.ffn_in)), block.ffn_out)
        emit(f"{name}.ffn", update_BLD)
        hidden_BLD = hidden_BLD + _gated(update_BLD, ffn_gate)
        emit(name, hidden_BLD)
        return hidden_BLD, own

    def _query(self, attn: AttentionWeights, x_BLD: Array) -> Array:
        normed = rms_norm(linear(x_BLD, attn.to_q), attn.norm_q, self.sizes.eps)
        return split_heads(normed, self.sizes.num_heads)

    def _key_value(self, attn: AttentionWeights, x_BLD: Array) -> KeyValue:
        key = rms_norm(linear(x_BLD, attn.to_k), attn.norm_k, self.sizes.eps)
        value = linear(x_BLD, attn.to_v)
        return KeyValue(*(split_heads(x, self.sizes.num_heads) for x in (key, value)))

    def _attend(
        self, name: str, attn: AttentionWeights, query: Array, seen: KeyValue, emit: Emit
    ) -> Array:
        attended = attention(query, seen.key, seen.value, scale=self.sizes.head_dim**-0.5)
        update_BLD = linear(join_heads(attended), attn.to_out)
        emit(f"{name}.to_out.0", update_BLD)
        return update_BLD


def _rows(table: Array, modulation_BFxD: Array) -> tuple[Array, ...]:
    """Add what is learned to what the timestep says; returns each row as [B,F,1,D].

    Source: https://arxiv.org/abs/2310.00426, section 2.3 (adaLN-single).
    """
    return tuple(np.moveaxis(table + modulation_BFxD, 2, 0)[..., None, :])


def _modulate(normed_BLD: Array, shift: Array, scale: Array) -> Array:
    return _grouped(normed_BLD, shift, lambda x_BFSD: x_BFSD * (1.0 + scale) + shift)


def _gated(update_BLD: Array, gate: Array) -> Array:
    return _grouped(update_BLD, gate, lambda x_BFSD: x_BFSD * gate)


def _grouped(x_BLD: Array, row_BF1D: Array, change: Callable[[Array], Array]) -> Array:
    """Apply a change to tokens grouped by timestep."""
    batch, _, width = x_BLD.shape
    return change(x_BLD.reshape(batch, row_BF1D.shape[1], -1, width)).reshape(x_BLD.shape)


def _joined(context: KeyValue | None, own: OwnKV) -> KeyValue:
    if context is None:
        return KeyValue(own.key_rotated, own.value)
    key = np.concatenate((context.key, own.key_rotated), axis=1)
    return KeyValue(key, np.concatenate((context.value, own.value), axis=1))
