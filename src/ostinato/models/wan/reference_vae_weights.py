"""Weights of the decoder of `AutoencoderKLWan`, read without building it."""

# C channel

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostinato.backend.checkpoint import DIFFUSERS_STEM
from ostinato.backend.reference.arrays import Affine, Array
from ostinato.backend.reference.settings import Settings
from ostinato.backend.reference.weights import WeightReader

_RGB = 3
# What only encoding reads.
_ENCODER = (r"encoder\.", r"quant_conv\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualWeights:
    """Two normed causal convolutions; shortcut None where the width stays. Norms are [C]."""

    norm1: Array
    conv1: Affine
    norm2: Array
    conv2: Affine
    shortcut: Affine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialAttentionWeights:
    """One head over the positions of a frame; projections are 1 x 1 convolutions."""

    norm: Array
    to_qkv: Affine
    proj: Affine


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsampleWeights:
    """Doubles height and width; time too where it has a convolution over time."""

    conv: Affine
    time_conv: Affine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpBlockWeights:
    """Residual blocks, then an upsampling where it is not the last stage."""

    residuals: tuple[ResidualWeights, ...]
    upsample: UpsampleWeights | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeWeights:
    """Weights and latent statistics [C]."""

    mean: Array
    std: Array
    post_quant_conv: Affine
    conv_in: Affine
    mid: tuple[ResidualWeights, SpatialAttentionWeights, ResidualWeights]
    up_blocks: tuple[UpBlockWeights, ...]
    norm_out: Array
    conv_out: Affine


def read_vae(folder: Path) -> VaeWeights:
    """Read the decoder of a VAE folder; raises InvalidCheckpoint."""
    settings = Settings(folder)
    settings.require("is_residual", False)
    settings.require("patch_size", None)
    reader = WeightReader(folder, DIFFUSERS_STEM)
    stated = settings.states("decoder_base_dim")
    base = settings.whole("decoder_base_dim" if stated else "base_dim")
    widths = [base * multiple for multiple in reversed(settings.wholes("dim_mult"))]
    latent, deepest, name = settings.whole("z_dim"), widths[0], "decoder.mid_block"
    weights = VaeWeights(
        mean=np.array(settings.numbers("latents_mean")),
        std=np.array(settings.numbers("latents_std")),
        post_quant_conv=reader.affine("post_quant_conv", latent, latent, 1, 1, 1),
        conv_in=reader.affine("decoder.conv_in", deepest, latent, 3, 3, 3),
        mid=(
            _read_residual(reader, f"{name}.resnets.0", deepest, deepest),
            _read_attention(reader, f"{name}.attentions.0", deepest),
            _read_residual(reader, f"{name}.resnets.1", deepest, deepest),
        ),
        up_blocks=tuple(_read_up_blocks(reader, settings, widths)),
        norm_out=reader.take("decoder.norm_out.gamma", widths[-1], 1, 1, 1).ravel(),
        conv_out=reader.affine("decoder.conv_out", _RGB, widths[-1], 3, 3, 3),
    )
    reader.finish(*_ENCODER)
    return weights


def _read_up_blocks(
    reader: WeightReader, settings: Settings, widths: list[int]
) -> Iterator[UpBlockWeights]:
    """Read the stages from the deepest on; an upsampling halves the width of what follows."""
    doubles_time = (*reversed(settings.flags("temperal_downsample")), None)
    width_in = widths[0]
    for index, (width, doubles) in enumerate(zip(widths, doubles_time, strict=True)):
        name = f"decoder.up_blocks.{index}"
        residuals: list[ResidualWeights] = []
        for depth in range(settings.whole("num_res_blocks") + 1):
            residuals.append(_read_residual(reader, f"{name}.resnets.{depth}", width_in, width))
            width_in = width
        upsample = None
        if doubles is not None:
            upsample = _read_upsample(reader, f"{name}.upsamplers.0", width, doubles)
            width_in = width // 2
        yield UpBlockWeights(residuals=tuple(residuals), upsample=upsample)


def _read_residual(reader: WeightReader, name: str, width_in: int, width: int) -> ResidualWeights:
    changes = width_in != width
    return ResidualWeights(
        norm1=reader.take(f"{name}.norm1.gamma", width_in, 1, 1, 1).ravel(),
        conv1=reader.affine(f"{name}.conv1", width, width_in, 3, 3, 3),
        norm2=reader.take(f"{name}.norm2.gamma", width, 1, 1, 1).ravel(),
        conv2=reader.affine(f"{name}.conv2", width, width, 3, 3, 3),
        shortcut=(
            reader.affine(f"{name}.conv_shortcut", width, width_in, 1, 1, 1) if changes else None
        ),
    )


def _read_attention(reader: WeightReader, name: str, width: int) -> SpatialAttentionWeights:
    return SpatialAttentionWeights(
        norm=reader.take(f"{name}.norm.gamma", width, 1, 1).ravel(),
        to_qkv=reader.affine(f"{name}.to_qkv", 3 * width, width, 1, 1),
        proj=reader.affine(f"{name}.proj", width, width, 1, 1),
    )


def _read_upsample(reader: WeightReader, name: str, width: int, doubles: bool) -> UpsampleWeights:
    return UpsampleWeights(
        conv=reader.affine(f"{name}.resample.1", width // 2, width, 3, 3),
        time_conv=reader.affine(f"{name}.time_conv", 2 * width, width, 3, 1, 1)
        if doubles
        else None,
    )
