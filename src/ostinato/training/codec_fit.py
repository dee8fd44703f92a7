"""Fits the codec: principal components for the encoder, gradient descent for the decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.models.builtin.codec import CodecConfig, PatchCodec
from ostinato.training.config import CodecTraining

_NUM_FIT_PATCHES = 200_000
_WARMUP_STEPS = 50


def fit_codec(
    frames: Tensor,
    codec_config: CodecConfig,
    config: CodecTraining,
    seed: int,
    *,
    autocast: bool = True,
    on_step: Callable[[int, float], None] | None = None,
) -> PatchCodec:
    """Train a codec on clips, uint8 [K,3,F,height,width]; returns it in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        codec = PatchCodec(codec_config)
    # One row for each latent frame. A loss over patches is the loss over pixels, reordered.
    rows_KHWP = torch.cat([codec.to_patches(clip[None])[0] for clip in frames])
    codec.fit_linear(_some_patches(rows_KHWP, generator))
    optimizer = torch.optim.AdamW(codec.parameters(), lr=config.learning_rate, weight_decay=0.0)
    for step in range(config.steps):
        batch = torch.randint(len(rows_KHWP), (config.batch_latent_frames,), generator=generator)
        clean = _to_unit(rows_KHWP[batch])
        latents = codec.encode_patches(clean)
        latents = latents + config.latent_noise * torch.randn(latents.shape, generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            decoded = codec.decode_patches(latents)
        error = decoded.float() - clean
        loss = error.square().mean() + config.l1_weight * error.abs().mean()
        loss.backward()
        for group in optimizer.param_groups:
            warmup = min(1.0, (step + 1) / _WARMUP_STEPS)
            group["lr"] = config.learning_rate * warmup * (1.0 - step / config.steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_step is not None:
            on_step(step, float(loss.detach()))
    return codec.eval().requires_grad_(False)


@torch.no_grad()
def psnr(codec: PatchCodec, frames: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB over clips, float [K,3,F,height,width]."""
    errors = [
        F.mse_loss(codec.decode(codec.encode(clip[None])), clip[None]).double() for clip in frames
    ]
    # The range [-1, 1] is 2 wide.
    return float(10.0 * torch.log10(4.0 / torch.stack(errors).mean()))


def _some_patches(rows_KHWP: Tensor, generator: torch.Generator) -> Tensor:
    """Return up to about `_NUM_FIT_PATCHES` patches, float [N,P]."""
    count = max(1, _NUM_FIT_PATCHES // (rows_KHWP.shape[1] * rows_KHWP.shape[2]))
    chosen = torch.randperm(len(rows_KHWP), generator=generator)[:count]
    return _to_unit(rows_KHWP[chosen]).flatten(0, 2)


def _to_unit(pixels: Tensor) -> Tensor:
    return pixels.float() / 127.5 - 1.0
