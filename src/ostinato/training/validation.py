"""Flow-matching losses on held-out scenes at fixed noise, as the samplers will meet it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ostinato.training.config import FlowMatchingConfig
from ostinato.training.data.clips import ClipSet
from ostinato.training.flow_model import FlowModel
from ostinato.training.methods.flow_matching import (
    flow_matching_loss,
    noise_latents,
    shift_sigmas,
)

_SEED = 20_000
_BATCH = 24
_HIGH, _MIDDLE = 0.85, 0.5


@torch.no_grad()
def validation_losses(
    model: FlowModel, clips: ClipSet, config: FlowMatchingConfig
) -> dict[str, float]:
    """Return the loss of a first chunk, of a chunk on clean history and of a wave, as `val_*`."""
    last = config.window_chunks - 1
    history = torch.zeros(config.window_chunks)
    history[last] = _HIGH
    wave = (torch.arange(config.window_chunks) - 0.5).clamp_min(0.0) / config.window_chunks
    wave = shift_sigmas(wave, config.flow_shift)
    patterns = {
        "val_first_high": torch.tensor([_HIGH]),
        "val_first_middle": torch.tensor([_MIDDLE]),
        "val_history_high": history,
        "val_wave": wave,
    }
    return {name: _mean_loss(model, clips, config, sigmas) for name, sigmas in patterns.items()}


def _mean_loss(
    model: FlowModel, clips: ClipSet, config: FlowMatchingConfig, sigmas_N: Tensor
) -> float:
    generator = torch.Generator().manual_seed(_SEED)
    rng = np.random.default_rng(_SEED)
    num_frames = len(sigmas_N) * config.chunk_latent_frames
    rounds = max(1, len(clips.scenes) // _BATCH)
    total = 0.0
    for _ in range(rounds):
        batch = min(_BATCH, len(clips.scenes))
        latents, captions = clips.draw(rng, batch, num_frames, 0.0)
        sigmas = sigmas_N.expand(batch, -1)
        noisy = noise_latents(latents, sigmas, generator)
        velocity = model.velocity(noisy.latents, noisy.timesteps, captions)
        total += float(flow_matching_loss(velocity, noisy.target, (sigmas > 0).float()))
    return total / rounds
