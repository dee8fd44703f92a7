"""Sizes of the built-in model and the library modules they build.

The transformer is diffusers' `WanTransformer3DModel` and the text encoder transformers'
`UMT5EncoderModel`, both at a size that one CPU core trains in an hour; only the initial values
are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from ostinato.models.builtin.codec import CodecConfig

CHUNK_LATENT_FRAMES = 3  # latent frames that are denoised together at one noise level
WINDOW_CHUNKS = 6  # chunks that attend to one another in training; the context of a roll-out
FLOW_SHIFT = 3.0
FPS = 16
INITIAL_GATE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinArchitecture:
    """Sizes of the three networks. Widths are multiples of 32, heads are 32 wide."""

    codec: CodecConfig = field(default_factory=CodecConfig)
    num_attention_heads: int = 4
    attention_head_dim: int = 32
    num_layers: int = 6
    ffn_dim: int = 512
    freq_dim: int = 256
    text_dim: int = 64
    text_layers: int = 2
    text_ffn_dim: int = 128

    @property
    def inner_dim(self) -> int:
        """Width of the transformer."""
        return self.num_attention_heads * self.attention_head_dim


def build_transformer(arch: BuiltinArchitecture) -> WanTransformer3DModel:
    """Build the transformer with its initial values drawn from torch's global generator."""
    channels = arch.codec.latent_channels
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=arch.num_attention_heads,
        attention_head_dim=arch.attention_head_dim,
        in_channels=channels,
        out_channels=channels,
        text_dim=arch.text_dim,
        freq_dim=arch.freq_dim,
        ffn_dim=arch.ffn_dim,
        num_layers=arch.num_layers,
        cross_attn_norm=True,
    )
    _initialise(transformer)
    return transformer


@torch.no_grad()
def _initialise(transformer: WanTransformer3DModel) -> None:
    """Start near the identity: small constant gates, no shift or scale, output zero.

    The gates are rows 2 and 5 of each block's table (Wan's order: shift, scale, gate for
    attention, then for the feed-forward). At exactly 0 a block would get no gradient at first.
    """
    nn.init.normal_(transformer.condition_embedder.time_proj.weight, std=0.02)
    nn.init.zeros_(transformer.condition_embedder.time_proj.bias)
    for block in transformer.blocks:
        table = block.get_parameter("scale_shift_table")
        table.zero_()
        table[:, (2, 5)] = INITIAL_GATE
    transformer.scale_shift_table.zero_()
    nn.init.zeros_(transformer.proj_out.weight)
    nn.init.zeros_(transformer.proj_out.bias)


def build_text_encoder(arch: BuiltinArchitecture, vocabulary_size: int) -> UMT5EncoderModel:
    """Build the text encoder with its initial values drawn from torch's global generator."""
    config = UMT5Config(
        vocab_size=vocabulary_size,
        d_model=arch.text_dim,
        d_kv=32,
        d_ff=arch.text_ffn_dim,
        num_layers=arch.text_layers,
        num_heads=arch.text_dim // 32,
        dropout_rate=0.0,
    )
    return UMT5EncoderModel(config)
