"""The shapes in which stacked samples go through the layers of the library's Wan."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from ostinato.backend.batch_rules import Attention, Linear, LinearShape, Rows, StackShapes


class _Sizes(NamedTuple):
    heads: int
    head_dim: int
    ffn_dim: int
    freq_dim: int
    patch_values: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


def row_shapes(
    transformer: WanTransformer3DModel, *, tokens: int, time_rows: int, dtype: torch.dtype
) -> StackShapes:
    """Return the shapes of the causal forward, which attends request by request.

    tokens: of one sample, of `dtype`. time_rows: rows that its time embedding is padded to.
    """
    sizes = _sizes(transformer)
    width = sizes.width
    embedding = (
        Linear(time_rows, LinearShape(sizes.freq_dim, width, True)),
        Linear(time_rows, LinearShape(width, width, True)),
        Linear(time_rows, LinearShape(width, 6 * width, True)),
    )
    layers = _layers(sizes, tokens, dtype)
    # Sine and cosine fill half of the frequencies each.
    of_time = (Rows(time_rows, sizes.freq_dim // 2), Rows(time_rows, width))
    return layers._replace(
        linears=(*embedding, *layers.linears), activations=(*of_time, *layers.activations)
    )


def whole_shapes(
    transformer: WanTransformer3DModel, *, tokens: int, text_tokens: int, dtype: torch.dtype
) -> StackShapes:
    """Return the shapes of whole blocks: the layers of a sample, and its attention.

    tokens and text_tokens: of one sample, of `dtype`.
    """
    sizes = _sizes(transformer)
    layers = _layers(sizes, tokens, dtype)
    width, heads, head_dim = sizes.width, sizes.heads, sizes.head_dim
    return layers._replace(
        linears=(*layers.linears, Linear(text_tokens, LinearShape(width, width, True))),
        attentions=(
            Attention(tokens, tokens, heads, head_dim),
            Attention(tokens, text_tokens, heads, head_dim),
        ),
        norms=(*layers.norms, Rows(text_tokens, width)),
    )


def _layers(sizes: _Sizes, tokens: int, dtype: torch.dtype) -> StackShapes:
    """Return what a sample's tokens go through in every layer, and in the head."""
    width = sizes.width
    return StackShapes(
        linears=(
            Linear(tokens, LinearShape(width, width, True)),
            Linear(tokens, LinearShape(width, sizes.ffn_dim, True)),
            Linear(tokens, LinearShape(sizes.ffn_dim, width, True)),
            Linear(tokens, LinearShape(width, sizes.patch_values, True)),
        ),
        attentions=(),
        norms=(Rows(tokens, width),),
        activations=(Rows(tokens, sizes.ffn_dim),),
        dtype=dtype,
    )


def _sizes(transformer: WanTransformer3DModel) -> _Sizes:
    config = transformer.config
    patch_frames, patch_height, patch_width = cast("tuple[int, int, int]", config["patch_size"])
    heads, head_dim, ffn_dim, freq_dim, channels = (
        cast("int", config[name])
        for name in (
            "num_attention_heads",
            "attention_head_dim",
            "ffn_dim",
            "freq_dim",
            "out_channels",
        )
    )
    patch_values = channels * patch_frames * patch_height * patch_width
    return _Sizes(heads, head_dim, ffn_dim, freq_dim, patch_values)
