"""Sizes and weights of a text-to-video `WanTransformer3DModel`, read without building it."""
# D width, P values of a patch

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ostinato.backend.checkpoint import DIFFUSERS_STEM
from ostinato.backend.reference.arrays import Affine, Array
from ostinato.backend.reference.settings import Settings
from ostinato.backend.reference.weights import WeightReader

# The library drops this tensor of published files as well.
_IGNORED = r".*norm_added_q"


@dataclass(frozen=True, slots=True, kw_only=True)
class WanSizes:
    """Sizes of a Wan whose patches cover one latent frame."""

    num_heads: int
    head_dim: int
    num_layers: int
    in_channels: int
    out_channels: int
    patch_height: int
    patch_width: int
    text_dim: int
    freq_dim: int
    ffn_dim: int
    cross_attn_norm: bool
    eps: float

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Projections [D,D] with bias, and the RMS norms [D] of queries and keys."""

    to_q: Affine
    to_k: Affine
    to_v: Affine
    to_out: Affine
    norm_q: Array
    norm_k: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights:
    """One block. table: shift, scale, gate of attention, then of the feed-forward, [6,D]."""

    table: Array
    attn1: AttentionWeights
    norm2: Affine | None
    attn2: AttentionWeights
    ffn_in: Affine
    ffn_out: Affine


@dataclass(frozen=True, slots=True, kw_only=True)
class WanWeights:
    """All weights. table: shift and scale before the output layer, [2,D]."""

    patch_embedding: Affine
    time_in: Affine
    time_out: Affine
    time_proj: Affine
    text_in: Affine
    text_out: Affine
    blocks: tuple[BlockWeights, ...]
    table: Array
    proj_out: Affine


def read_wan(folder: Path) -> tuple[WanSizes, WanWeights]:
    """Read a transformer folder; raises InvalidCheckpoint for what is no text-to-video Wan."""
    sizes = _read_sizes(Settings(folder))
    reader = WeightReader(folder, DIFFUSERS_STEM)
    weights = _read_weights(reader, sizes)
    reader.finish(_IGNORED)
    return sizes, weights


def _read_sizes(settings: Settings) -> WanSizes:
    for name in ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len"):
        settings.require(name, None)
    in_channels = settings.whole("in_channels")
    given = settings.wholes("patch_size")
    settings.require("patch_size", [1, *given[1:3]])
    return WanSizes(
        num_heads=settings.whole("num_attention_heads"),
        head_dim=settings.whole("attention_head_dim"),
        num_layers=settings.whole("num_layers"),
        in_channels=in_channels,
        out_channels=(
            settings.whole("out_channels") if settings.states("out_channels") else in_channels
        ),
        patch_height=given[1],
        patch_width=given[2],
        text_dim=settings.whole("text_dim"),
        freq_dim=settings.whole("freq_dim"),
        ffn_dim=settings.whole("ffn_dim"),
        cross_attn_norm=settings.flag("cross_attn_norm"),
        eps=settings.number("eps"),
    )


def _read_weights(reader: WeightReader, sizes: WanSizes) -> WanWeights:
    width, patch = sizes.width, (1, sizes.patch_height, sizes.patch_width)
    embedder = "condition_embedder"
    return WanWeights(
        patch_embedding=reader.affine("patch_embedding", width, sizes.in_channels, *patch),
        time_in=reader.affine(f"{embedder}.time_embedder.linear_1", width, sizes.freq_dim),
        time_out=reader.affine(f"{embedder}.time_embedder.linear_2", width, width),
        time_proj=reader.affine(f"{embedder}.time_proj", 6 * width, width),
        text_in=reader.affine(f"{embedder}.text_embedder.linear_1", width, sizes.text_dim),
        text_out=reader.affine(f"{embedder}.text_embedder.linear_2", width, width),
        blocks=tuple(_read_block(reader, sizes, layer) for layer in range(sizes.num_layers)),
        table=reader.take("scale_shift_table", 1, 2, width)[0],
        proj_out=reader.affine("proj_out", sizes.out_channels * math.prod(patch), width),
    )


def _read_block(reader: WeightReader, sizes: WanSizes, layer: int) -> BlockWeights:
    name, width = f"blocks.{layer}", sizes.width
    return BlockWeights(
        table=reader.take(f"{name}.scale_shift_table", 1, 6, width)[0],
        attn1=_read_attention(reader, f"{name}.attn1", width),
        norm2=reader.affine(f"{name}.norm2", width) if sizes.cross_attn_norm else None,
        attn2=_read_attention(reader, f"{name}.attn2", width),
        ffn_in=reader.affine(f"{name}.ffn.net.0.proj", sizes.ffn_dim, width),
        ffn_out=reader.affine(f"{name}.ffn.net.2", width, sizes.ffn_dim),
    )


def _read_attention(reader: WeightReader, name: str, width: int) -> AttentionWeights:
    return AttentionWeights(
        to_q=reader.affine(f"{name}.to_q", width, width),
        to_k=reader.affine(f"{name}.to_k", width, width),
        to_v=reader.affine(f"{name}.to_v", width, width),
        to_out=reader.affine(f"{name}.to_out.0", width, width),
        norm_q=reader.take(f"{name}.norm_q.weight", width),
        norm_k=reader.take(f"{name}.norm_k.weight", width),
    )
