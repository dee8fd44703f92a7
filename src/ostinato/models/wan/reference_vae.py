"""The decoder of AutoencoderKLWan in float64, frame by frame.

A latent frame sees earlier ones only through the inputs that its causal convolutions keep; they
live in a history that one decode makes and drops.
"""

# B batch, C channel, T frame, H W pixel, L position, D width

from __future__ import annotations

import numpy as np

from ostinato.backend.reference.arrays import Affine, Array, Emit
from ostinato.backend.reference.convolution import causal_conv3d, conv2d
from ostinato.backend.reference.ops import attention, silu
from ostinato.models.wan.reference_vae_weights import (
    ResidualWeights,
    SpatialAttentionWeights,
    UpsampleWeights,
    VaeWeights,
)

# The norm's guard against a division by zero, torch's default for `normalize`.
_NORM_EPS = 1e-12


def decode(weights: VaeWeights, latents_BCTHW: Array, emit: Emit) -> Array:
    """Decode normalised latents [B,C,T,H,W] to frames [B,3,T,H,W] in [-1,1]."""
    shape = (1, -1, 1, 1, 1)
    denormalised = latents_BCTHW * weights.std.reshape(shape) + weights.mean.reshape(shape)
    hidden = causal_conv3d(denormalised, weights.post_quant_conv, None)
    emit("post_quant_conv", hidden)
    history = _History()
    frames = [
        _decode_frame(weights, hidden[:, :, t : t + 1], history, emit)
        for t in range(hidden.shape[2])
    ]
    return np.clip(np.concatenate(frames, axis=2), -1.0, 1.0)


def _decode_frame(weights: VaeWeights, x_BC1HW: Array, history: _History, emit: Emit) -> Array:
    x = history.convolve("conv_in", x_BC1HW, weights.conv_in)
    emit("decoder.conv_in", x)
    before, attn, after = weights.mid
    x = _attend(_residual("mid.0", x, before, history), attn)
    x = _residual("mid.1", x, after, history)
    emit("decoder.mid_block", x)
    for index, block in enumerate(weights.up_blocks):
        for depth, residual in enumerate(block.residuals):
            x = _residual(f"up.{index}.{depth}", x, residual, history)
        if block.upsample is not None:
            x = _upsample(f"up.{index}.time", x, block.upsample, history)
        emit(f"decoder.up_blocks.{index}", x)
    x = history.convolve("conv_out", silu(_channel_norm(x, weights.norm_out)), weights.conv_out)
    emit("decoder.conv_out", x)
    return x


class _History:
    """The last inputs of each causal convolution, by name, within one decode."""

    def __init__(self) -> None:
        self._inputs: dict[str, Array] = {}
        self._begun: set[str] = set()

    def convolve(self, name: str, x_BCTHW: Array, weights: Affine) -> Array:
        """Convolve frames after those that this convolution has seen; zeros before the first."""
        before = self._inputs.get(name, x_BCTHW[:, :, :0])
        keep = weights.weight.shape[2] - 1
        self._inputs[name] = np.concatenate((before, x_BCTHW), axis=2)[:, :, -keep:]
        return causal_conv3d(x_BCTHW, weights, before)

    def begins(self, name: str) -> bool:
        """Tell whether this is the first time that `name` is asked for."""
        first = name not in self._begun
        self._begun.add(name)
        return first


def _residual(name: str, x: Array, weights: ResidualWeights, history: _History) -> Array:
    shortcut = x if weights.shortcut is None else causal_conv3d(x, weights.shortcut, None)
    h = history.convolve(f"{name}.1", silu(_channel_norm(x, weights.norm1)), weights.conv1)
    h = history.convolve(f"{name}.2", silu(_channel_norm(h, weights.norm2)), weights.conv2)
    return h + shortcut


def _channel_norm(x: Array, gain: Array) -> Array:
    """Scale the channels of each position to the norm sqrt(C), then by the gain [C]."""
    norm = np.maximum(np.sqrt((x**2).sum(1, keepdims=True)), _NORM_EPS)
    return x / norm * np.sqrt(len(gain)) * gain.reshape(1, -1, *(1,) * (x.ndim - 2))


def _attend(x_BCTHW: Array, weights: SpatialAttentionWeights) -> Array:
    """Let the positions of each frame attend to one another."""
    batch, channels, frames, height, width = x_BCTHW.shape
    images = _to_images(x_BCTHW)
    qkv = conv2d(_channel_norm(images, weights.norm), weights.to_qkv, padding=0)
    qkv_BL1D = np.swapaxes(qkv.reshape(len(images), 3 * channels, -1), 1, 2)[:, :, None]
    query, key, value = np.split(qkv_BL1D, 3, axis=-1)
    attended = attention(query, key, value, scale=channels**-0.5)[:, :, 0]
    back = np.swapaxes(attended, 1, 2).reshape(len(images), channels, height, width)
    update = conv2d(back, weights.proj, padding=0)
    return x_BCTHW + _to_video(update, batch, frames)


def _upsample(name: str, x_BCTHW: Array, weights: UpsampleWeights, history: _History) -> Array:
    """Double the frames, but the clip's first, and then height and width.

    The first frame passes the convolution over time by and is not part of its history.
    """
    if weights.time_conv is not None and not history.begins(name):
        doubled = history.convolve(name, x_BCTHW, weights.time_conv)
        batch, _, frames, height, width = doubled.shape
        pairs = doubled.reshape(batch, 2, -1, frames, height, width)
        # The two halves of the channels are the two frames: [B,2,C,T,...] -> [B,C,T,2,...].
        pairs = np.moveaxis(pairs, 1, 3)
        x_BCTHW = pairs.reshape(batch, -1, 2 * frames, height, width)
    larger = np.repeat(np.repeat(_to_images(x_BCTHW), 2, axis=2), 2, axis=3)
    return _to_video(conv2d(larger, weights.conv, padding=1), *x_BCTHW.shape[0:3:2])


def _to_images(x_BCTHW: Array) -> Array:
    moved = np.swapaxes(x_BCTHW, 1, 2)
    return moved.reshape(-1, *moved.shape[2:])


def _to_video(images: Array, batch: int, frames: int) -> Array:
    return np.swapaxes(images.reshape(batch, frames, *images.shape[1:]), 1, 2)
