"""The video codec of the built-in model: four frames of pixels to one latent frame and back.

Invariant: a latent frame depends on its own four video frames and on nothing else, and it decodes
alone. Streaming therefore needs no cache, and decoding frame by frame gives the same bytes as
decoding a whole clip: `decode` runs the network on one latent frame at a time, since a convolution
library may pick its kernel, and so its rounding, by the size of the batch.
"""

# B batch, C channel, T latent frame, F video frame, H W latent, P patch values, K latent frames of
# all clips

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ostinato.backend.alignment import align_parameters
from ostinato.backend.checkpoint import read_config
from ostinato.backend.loading import loading
from ostinato.errors import InvalidCheckpoint

CODEC_STEM = "model"
CODEC_WEIGHTS = f"{CODEC_STEM}.safetensors"
CODEC_CONFIG = "config.json"
# Sizes above this are no codec's; a wrong digit must not ask for all of the memory.
_MAX_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """Sizes of the codec."""

    latent_channels: int = 16
    hidden_channels: int = 96
    num_layers: int = 3
    patch_size: int = 8
    frames_per_latent: int = 4

    @property
    def patch_values(self) -> int:
        """Values in one patch: frames x height x width x RGB."""
        return self.frames_per_latent * self.patch_size**2 * 3


class PatchCodec(nn.Module):
    """Encode with a fixed linear projection; decode with its inverse plus a learned residual."""

    patch_mean: Tensor
    encode_weight: Tensor
    decode_weight: Tensor

    def __init__(self, config: CodecConfig | None = None) -> None:
        """Draw the residual's layers from torch's generator; zeros until the projection is fit."""
        super().__init__()
        self.config = config or CodecConfig()
        channels, values = self.config.latent_channels, self.config.patch_values
        hidden = self.config.hidden_channels
        self.register_buffer("patch_mean", torch.zeros(values))
        self.register_buffer("encode_weight", torch.zeros(channels, values))
        self.register_buffer("decode_weight", torch.zeros(values, channels))
        self.conv_in = nn.Conv2d(channels, hidden, 3, padding=1)
        self.convs = nn.ModuleList(
            nn.Conv2d(hidden, hidden, 3, padding=1) for _ in range(self.config.num_layers)
        )
        self.proj_out = nn.Linear(hidden, values)
        nn.init.zeros_(self.proj_out.weight)
        nn.init.zeros_(self.proj_out.bias)

    @torch.no_grad()
    def fit_linear(self, patches_NP: Tensor) -> None:
        """Set the projection to the principal components of patches, float [N, patch_values].

        Channel k is centred and divided by std_k ** 0.5 (half whitening: the strong components
        stay the loudest, but less so), then all are scaled so that their mean variance is 1.
        """
        patches = patches_NP.double()
        mean = patches.mean(0)
        covariance = patches.T @ patches / len(patches) - torch.outer(mean, mean)
        variances, vectors = torch.linalg.eigh(covariance)  # ascending
        channels = self.config.latent_channels
        components = vectors[:, -channels:].flip(1).T
        # The sign of an eigenvector is arbitrary; fix it so that a fit is reproducible.
        largest = components.abs().argmax(dim=1, keepdim=True)
        components = components * components.gather(1, largest).sign()
        std = variances[-channels:].flip(0).clamp_min(1e-12).sqrt()
        gain = std.rsqrt() / std.mean().sqrt()
        self.patch_mean.copy_(mean)
        self.encode_weight.copy_(components * gain[:, None])
        self.decode_weight.copy_(components.T / gain)

    def to_patches(self, frames: Tensor) -> Tensor:
        """Cut frames [B,3,F,height,width] into patches [B,T,H,W,patch_values]."""
        f, p = self.config.frames_per_latent, self.config.patch_size
        if frames.shape[2] % f or frames.shape[3] % p or frames.shape[4] % p:
            raise ValueError(
                f"frames have shape {tuple(frames.shape)}; expected [B,3,F,height,width] with "
                f"F a multiple of {f}, height and width multiples of {p}"
            )
        cut = frames.unflatten(4, (-1, p)).unflatten(3, (-1, p)).unflatten(2, (-1, f))
        # [B, 3, T, f, H, p, W, p] -> [B, T, H, W, f, p, p, 3]
        return cut.permute(0, 2, 4, 6, 3, 5, 7, 1).flatten(4)

    def from_patches(self, patches: Tensor) -> Tensor:
        """Undo `to_patches`."""
        f, p = self.config.frames_per_latent, self.config.patch_size
        cut = patches.unflatten(4, (f, p, p, 3))
        return cut.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames, float [B,3,F,height,width] in [-1,1], to latents [B,C,T,H,W]."""
        latents_BTHWC = self.encode_patches(self.to_patches(frames))
        return latents_BTHWC.permute(0, 4, 1, 2, 3).contiguous()

    def decode(self, latents: Tensor) -> Tensor:
        """Decode latents, float [B,C,T,H,W], to frames [B,3,F,height,width] in [-1,1]."""
        rows_KHWC = latents.permute(0, 2, 3, 4, 1).flatten(0, 1)
        decoded = torch.cat([self.decode_patches(row) for row in rows_KHWC.split(1)])
        patches = decoded.unflatten(0, (latents.shape[0], -1))
        return self.from_patches(patches).clamp(-1.0, 1.0)

    def encode_patches(self, patches: Tensor) -> Tensor:
        """Project patches [...,patch_values] to latents [...,C]."""
        return F.linear(patches - self.patch_mean, self.encode_weight)

    def decode_patches(self, latents_KHWC: Tensor) -> Tensor:
        """Decode latent frames [K,H,W,C] to patches [K,H,W,patch_values], not clamped."""
        linear = F.linear(latents_KHWC, self.decode_weight, self.patch_mean)
        hidden = self.conv_in(latents_KHWC.permute(0, 3, 1, 2).contiguous())
        for conv in self.convs:
            hidden = hidden + conv(F.silu(hidden))
        return linear + self.proj_out(F.silu(hidden).permute(0, 2, 3, 1))


def save_codec(codec: PatchCodec, folder: Path, dtype: torch.dtype) -> None:
    """Write the configuration and the weights in the given dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CODEC_CONFIG).write_text(json.dumps(asdict(codec.config), indent=2) + "\n")
    state = {name: value.to(dtype).contiguous() for name, value in codec.state_dict().items()}
    save_file(state, folder / CODEC_WEIGHTS, metadata={"format": "pt"})


def read_codec_config(folder: Path) -> CodecConfig:
    """Read the sizes; every one must be stated. Raises InvalidCheckpoint."""
    config = read_config(folder, CODEC_CONFIG)
    names = {field.name for field in fields(CodecConfig)}
    if set(config) != names:
        raise InvalidCheckpoint(
            f"{str(folder / CODEC_CONFIG)!r} has the keys {sorted(config)}, expected "
            f"{sorted(names)}"
        )
    sizes = {name: size for name, size in config.items() if type(size) is int}
    wrong = sorted(name for name in names if not 1 <= sizes.get(name, 0) <= _MAX_SIZE)
    if wrong:
        raise InvalidCheckpoint(
            f"{str(folder / CODEC_CONFIG)!r}: {', '.join(wrong)} must be whole numbers from 1 to "
            f"{_MAX_SIZE}"
        )
    return CodecConfig(**sizes)


def load_codec(folder: Path) -> PatchCodec:
    """Read a codec, upcast to float32, in evaluation mode, its weights aligned.

    Raises InvalidCheckpoint when a file is missing or the keys do not match the configuration.
    """
    config, weights_file = read_codec_config(folder), folder / CODEC_WEIGHTS
    if not weights_file.is_file():
        raise InvalidCheckpoint(
            f"{str(weights_file)!r} is missing; expected a codec folder with {CODEC_CONFIG!r} and "
            f"{CODEC_WEIGHTS!r}; export the weights again"
        )
    try:
        with loading():
            codec = PatchCodec(config)
            state = {name: value.float() for name, value in load_file(weights_file).items()}
        codec.load_state_dict(state, strict=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise InvalidCheckpoint(
            f"the weights in {str(weights_file)!r} do not fit {CODEC_CONFIG!r}: {error}"
        ) from error
    align_parameters(codec)
    return codec.eval().requires_grad_(False)
