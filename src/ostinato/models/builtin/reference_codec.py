"""The built-in codec's decoder in float64, one latent frame at a time."""

# H W latent, C latent channel, K hidden channel, P patch values, F video frame

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostinato.backend.reference.arrays import Affine, Array, Emit
from ostinato.backend.reference.convolution import conv2d
from ostinato.backend.reference.ops import linear, silu
from ostinato.backend.reference.settings import Settings
from ostinato.backend.reference.weights import WeightReader
from ostinato.models.builtin.codec import CODEC_STEM

_KERNEL = (3, 3)
# What only encoding reads.
_ENCODER = "encode_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceDecoder:
    """Sizes and weights. linear: the inverse of the fixed projection, C to P values."""

    frames_per_latent: int
    patch_size: int
    linear: Affine
    conv_in: Affine
    convs: tuple[Affine, ...]
    proj_out: Affine

    def decode(self, latents_BCTHW: Array, emit: Emit) -> Array:
        """Decode latents [1,C,T,H,W] to frames [3,F,height,width] in [-1,1]."""
        rows_THWC = np.moveaxis(latents_BCTHW[0], 0, -1)
        patches = np.concatenate([self._decode_frame(row, emit) for row in rows_THWC[:, None]])
        f, p = self.frames_per_latent, self.patch_size
        cut = patches.reshape(*patches.shape[:3], f, p, p, 3)
        # [T,H,W,f,p,p,3] -> [3,T,f,H,p,W,p]
        laid = cut.transpose(6, 0, 3, 1, 4, 2, 5)
        frames, rows, columns = patches.shape[:3]
        return np.clip(laid.reshape(3, frames * f, rows * p, columns * p), -1.0, 1.0)

    def _decode_frame(self, row_1HWC: Array, emit: Emit) -> Array:
        hidden_1KHW = conv2d(np.moveaxis(row_1HWC, -1, 1), self.conv_in, padding=1)
        emit("conv_in", hidden_1KHW)
        for index, conv in enumerate(self.convs):
            update = conv2d(silu(hidden_1KHW), conv, padding=1)
            emit(f"convs.{index}", update)
            hidden_1KHW = hidden_1KHW + update
        residual_1HWP = linear(np.moveaxis(silu(hidden_1KHW), 1, -1), self.proj_out)
        emit("proj_out", residual_1HWP)
        return linear(row_1HWC, self.linear) + residual_1HWP


def read_decoder(folder: Path) -> ReferenceDecoder:
    """Read a codec folder; raises InvalidCheckpoint."""
    settings, reader = Settings(folder), WeightReader(folder, CODEC_STEM)
    channels, hidden = settings.whole("latent_channels"), settings.whole("hidden_channels")
    frames, patch = settings.whole("frames_per_latent"), settings.whole("patch_size")
    values = frames * patch**2 * 3
    decoder = ReferenceDecoder(
        frames_per_latent=frames,
        patch_size=patch,
        linear=Affine(
            reader.take("decode_weight", values, channels), reader.take("patch_mean", values)
        ),
        conv_in=reader.affine("conv_in", hidden, channels, *_KERNEL),
        convs=tuple(
            reader.affine(f"convs.{index}", hidden, hidden, *_KERNEL)
            for index in range(settings.whole("num_layers"))
        ),
        proj_out=reader.affine("proj_out", values, hidden),
    )
    reader.finish(_ENCODER)
    return decoder
