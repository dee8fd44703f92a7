"""The encoder of UMT5 in float64: relative position biases in every layer, scores not scaled.

Sources: https://arxiv.org/abs/2304.09151 (UMT5), https://arxiv.org/abs/1910.10683, section 2.1
(T5, position buckets), https://arxiv.org/abs/2002.05202 (gated GELU feed-forward).
"""
# B batch, L token, N head, D width, V word

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.backend.checkpoint import TRANSFORMERS_STEM
from ostinato.backend.reference.arrays import Affine, Array, Emit
from ostinato.backend.reference.ops import (
    attention,
    gelu_tanh,
    join_heads,
    linear,
    rms_norm,
    split_heads,
)
from ostinato.backend.reference.settings import Settings
from ostinato.backend.reference.weights import WeightReader

# The word table under its two tied names.
_SHARED, _TIED = "shared.weight", "encoder.embed_tokens.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class UMT5Layer:
    """One layer. buckets: bias of each distance bucket and head, [num_buckets,N]."""

    attention_norm: Array
    query: Affine
    key: Affine
    value: Affine
    out: Affine
    buckets: Array
    ffn_norm: Array
    gate: Affine
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True, kw_only=True)
class UMT5Encoder:
    """Sizes and weights; words is the table [V,D]."""

    num_heads: int
    max_distance: int
    eps: float
    words: Array
    layers: tuple[UMT5Layer, ...]
    final_norm: Array

    def encode(self, ids_BL: NDArray[np.int64], mask_BL: NDArray[np.int64], emit: Emit) -> Array:
        """Encode token ids [B,L]; mask 1 where a token may be attended to. Returns [B,L,D]."""
        hidden_BLD = self.words[ids_BL]
        hidden_from = np.where(mask_BL[:, None, None] > 0, 0.0, -np.inf)
        for index, layer in enumerate(self.layers):
            hidden_BLD = self._layer(layer, hidden_BLD, hidden_from)
            emit(f"encoder.block.{index}", hidden_BLD)
        normed = rms_norm(hidden_BLD, self.final_norm, self.eps)
        emit("encoder.final_layer_norm", normed)
        return normed

    def _layer(self, layer: UMT5Layer, hidden_BLD: Array, mask_bias: Array) -> Array:
        normed = rms_norm(hidden_BLD, layer.attention_norm, self.eps)
        query, key, value = (
            split_heads(linear(normed, projection), self.num_heads)
            for projection in (layer.query, layer.key, layer.value)
        )
        length, num_buckets = hidden_BLD.shape[1], len(layer.buckets)
        distances = np.arange(length)[None, :] - np.arange(length)[:, None]
        buckets = position_buckets(distances, num_buckets, self.max_distance)
        bias = np.moveaxis(layer.buckets[buckets], -1, 0)[None] + mask_bias
        attended = attention(query, key, value, scale=1.0, bias=bias)
        hidden_BLD = hidden_BLD + linear(join_heads(attended), layer.out)
        normed = rms_norm(hidden_BLD, layer.ffn_norm, self.eps)
        gated = gelu_tanh(linear(normed, layer.gate)) * linear(normed, layer.up)
        return hidden_BLD + linear(gated, layer.down)


def position_buckets(
    distances: NDArray[np.int64], num_buckets: int, max_distance: int
) -> NDArray[np.int64]:
    """Return the bucket of each signed distance, key minus query.

    Half of the buckets are for keys to the right. Of each half, one half holds one distance each,
    the other ever wider ranges up to `max_distance`, beyond which all fall into the last.
    """
    half = num_buckets // 2
    exact = half // 2
    distance = np.abs(distances)
    far = np.log(np.maximum(distance, 1) / exact) / math.log(max_distance / exact)
    wide = np.minimum(exact + (far * (half - exact)).astype(np.int64), half - 1)
    return half * (distances > 0) + np.where(distance < exact, distance, wide)


def read_umt5(folder: Path) -> UMT5Encoder:
    """Read an encoder folder; raises InvalidCheckpoint."""
    settings = Settings(folder)
    settings.require("feed_forward_proj", "gated-gelu")
    reader = WeightReader(folder, TRANSFORMERS_STEM)
    width, eps = settings.whole("d_model"), settings.number("layer_norm_epsilon")
    words = _SHARED if _SHARED in reader else _TIED
    encoder = UMT5Encoder(
        num_heads=settings.whole("num_heads"),
        max_distance=settings.whole("relative_attention_max_distance"),
        eps=eps,
        words=reader.take(words, settings.whole("vocab_size"), width),
        layers=tuple(
            _read_layer(reader, settings, index) for index in range(settings.whole("num_layers"))
        ),
        final_norm=reader.take("encoder.final_layer_norm.weight", width),
    )
    reader.finish(_TIED)
    return encoder


def _read_layer(reader: WeightReader, settings: Settings, index: int) -> UMT5Layer:
    width, ffn, heads = (settings.whole(name) for name in ("d_model", "d_ff", "num_heads"))
    inner, name = heads * settings.whole("d_kv"), f"encoder.block.{index}.layer"
    attn, dense = f"{name}.0.SelfAttention", f"{name}.1.DenseReluDense"
    num_buckets = settings.whole("relative_attention_num_buckets")
    return UMT5Layer(
        attention_norm=reader.take(f"{name}.0.layer_norm.weight", width),
        query=reader.affine(f"{attn}.q", inner, width, bias=False),
        key=reader.affine(f"{attn}.k", inner, width, bias=False),
        value=reader.affine(f"{attn}.v", inner, width, bias=False),
        out=reader.affine(f"{attn}.o", width, inner, bias=False),
        buckets=reader.take(f"{attn}.relative_attention_bias.weight", num_buckets, heads),
        ffn_norm=reader.take(f"{name}.1.layer_norm.weight", width),
        gate=reader.affine(f"{dense}.wi_0", ffn, width, bias=False),
        up=reader.affine(f"{dense}.wi_1", ffn, width, bias=False),
        down=reader.affine(f"{dense}.wo", width, ffn, bias=False),
    )
