"""Flow matching with one noise level per chunk (diffusion forcing on a causal window).

x_sigma = (1 - sigma) x0 + sigma eps; the network predicts v = eps - x0 at time 1000 sigma.
A chunk is a few latent frames at one noise level; attention across chunks is block-causal. One
mix of noise patterns makes one checkpoint serve three samplers: chunk after chunk on clean
history (self-forcing), with few steps, and as a wave of staggered noise levels.
"""

# B batch, C channel, T latent frame, H W latent, N chunk

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ostinato.training.config import FlowMatchingConfig, NoiseMix

NUM_TRAIN_TIMESTEPS = 1000.0  # the network's time is 1000 sigma (Wan, SD3, Flux)


class NoisyBatch(NamedTuple):
    """What the network sees and what it should answer."""

    latents: Tensor  # float32 [B,C,T,H,W]
    timesteps: Tensor  # float32 [B,T]
    target: Tensor  # float32 [B,C,T,H,W]


def shift_sigmas(sigmas: Tensor, shift: float) -> Tensor:
    """Apply the flow shift k: sigma' = k sigma / (1 + (k - 1) sigma)."""
    return shift * sigmas / (1.0 + (shift - 1.0) * sigmas)


def sample_single_sigmas(
    batch: int, config: FlowMatchingConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw noise levels of single chunks; returns sigmas [B,1] and loss weights [B,1] (all 1).

    Stratified: sample i falls into the i-th of B equal bins, which cuts the variance of the loss.
    """
    uniform = (torch.arange(batch) + torch.rand(batch, generator=generator)) / batch
    sigmas = shift_sigmas(uniform, config.flow_shift)[:, None]
    return sigmas, torch.ones_like(sigmas)


def sample_window_sigmas(
    batch: int, config: FlowMatchingConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw noise levels of windows; returns sigmas [B,N] and loss weights [B,N] in {0, 1}.

    The weight is 1 where a chunk is noisy and there is something to learn from its history.
    """
    mix, num_chunks = config.noise, config.window_chunks
    shape = (batch, num_chunks)
    free = (torch.arange(batch)[:, None] + torch.rand(shape, generator=generator)) / batch
    # A column is stratified over the batch; permuting each column keeps that and frees the rows.
    order = torch.rand(shape, generator=generator).argsort(dim=0)
    free = free.gather(0, order)
    pattern = torch.rand(batch, 1, generator=generator)
    independent_clean = torch.rand(shape, generator=generator) < mix.clean_chunk
    history = torch.randint(1, num_chunks, (batch, 1), generator=generator)
    history_clean = torch.arange(num_chunks)[None] < history
    ladder, ladder_weight = _ladder(batch, num_chunks, mix, generator)

    is_independent = pattern < mix.independent
    is_ladder = (pattern >= mix.independent) & (pattern < mix.independent + mix.ladder)
    clean = torch.where(is_independent, independent_clean, history_clean)
    uniform = torch.where(is_ladder, ladder, torch.where(clean, 0.0, free))
    weights = torch.where(is_ladder, ladder_weight, (~clean).float())
    sigmas = shift_sigmas(uniform, config.flow_shift)

    noisy_context = torch.rand(batch, 1, generator=generator) < mix.context_noise_share
    context = torch.rand(shape, generator=generator) * mix.context_noise_max
    return torch.where((sigmas == 0.0) & noisy_context, context, sigmas), weights


def _ladder(
    batch: int, num_chunks: int, mix: NoiseMix, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw wave ladders: S stages rising toward newer chunks after a clean history.

    Before the shift chunk i stands at (i - history + offset) / S, clipped to [0, 1]. A chunk is
    weighted unless it is clean or its predecessor is still pure noise.
    """
    low = min(mix.ladder_min_stages, num_chunks)
    stages = torch.randint(low, num_chunks + 1, (batch, 1), generator=generator)
    room = (num_chunks - stages + 1).float()
    history = (torch.rand(batch, 1, generator=generator) * room).floor()
    offset = torch.rand(batch, 1, generator=generator)
    level = (torch.arange(num_chunks)[None] - history + offset) / stages
    weights = ((level > 0) & (level < 1 + 1 / stages)).float()
    return level.clamp(0.0, 1.0), weights


def noise_latents(clean: Tensor, sigmas_BN: Tensor, generator: torch.Generator) -> NoisyBatch:
    """Mix noise into latents [B,C,T,H,W] at one level per chunk."""
    repeat = clean.shape[2] // sigmas_BN.shape[1]
    sigmas_BT = sigmas_BN.repeat_interleave(repeat, dim=1)
    noise = torch.randn(clean.shape, generator=generator)
    level = sigmas_BT[:, None, :, None, None]
    return NoisyBatch(
        latents=(1.0 - level) * clean + level * noise,
        timesteps=NUM_TRAIN_TIMESTEPS * sigmas_BT,
        target=noise - clean,
    )


def flow_matching_loss(velocity: Tensor, target: Tensor, weights_BN: Tensor) -> Tensor:
    """Return the float32 mean squared error over the chunks whose weight is 1."""
    error = (velocity.float() - target).square().mean(dim=(1, 3, 4))
    weights = weights_BN.repeat_interleave(target.shape[2] // weights_BN.shape[1], dim=1)
    return (error * weights).sum() / weights.sum().clamp_min(1.0)
