"""Schedules, steps and guidance of flow matching in float64.

sigma 1 is noise, 0 is clean; the network predicts v = noise - clean, so x = clean + sigma v.
"""

from __future__ import annotations

import numpy as np

from ostinato.backend.reference.arrays import Array

# diffusers' UniPC keeps its first sigma this far below 1, where log(1 - sigma) is infinite.
_UNIPC_EDGE = 1e-6


def shift_sigmas(sigmas: Array, flow_shift: float) -> Array:
    """Return k sigma / (1 + (k - 1) sigma): https://arxiv.org/abs/2403.03206, equation 23."""
    return flow_shift * sigmas / (1.0 + (flow_shift - 1.0) * sigmas)


def flow_sigmas(num_steps: int, flow_shift: float) -> Array:
    """Return `num_steps` + 1 evenly spaced sigmas from 1 to 0, shifted."""
    return shift_sigmas(np.linspace(1.0, 0.0, num_steps + 1), flow_shift)


def flow_match_euler_sigmas(num_steps: int, flow_shift: float, num_train_timesteps: int) -> Array:
    """Return the sigmas [n + 1] of diffusers' FlowMatchEulerDiscreteScheduler.

    Evenly spaced between the largest and the smallest trained sigma, which are shifted themselves;
    then shifted, so the smallest is shifted twice, as the library does; then 0.
    """
    smallest = shift_sigmas(np.array(1.0 / num_train_timesteps), flow_shift)
    spaced = np.linspace(1.0, smallest, num_steps)
    return np.append(shift_sigmas(spaced, flow_shift), 0.0)


def unipc_flow_sigmas(num_steps: int, flow_shift: float, num_train_timesteps: int) -> Array:
    """Return the sigmas [n + 1] of diffusers' UniPCMultistepScheduler with `use_flow_sigmas`."""
    spaced = np.linspace(1.0, 1.0 / num_train_timesteps, num_steps + 1)[:-1]
    sigmas = shift_sigmas(spaced, flow_shift)
    if abs(sigmas[0] - 1.0) < _UNIPC_EDGE:
        sigmas[0] -= _UNIPC_EDGE
    return np.append(sigmas, 0.0)


def flow_euler_step(x: Array, velocity: Array, sigma: float, sigma_next: float) -> Array:
    """Return x + (sigma_next - sigma) v, the explicit Euler rule on dx/dsigma = v."""
    return x + (sigma_next - sigma) * velocity


def flow_renoise_step(
    x: Array, velocity: Array, sigma: float, sigma_next: float, noise: Array
) -> Array:
    """Return (1 - sigma_next) x0 + sigma_next noise with x0 = x - sigma v.

    Source: https://arxiv.org/abs/2303.01469, multistep consistency sampling.
    """
    return (1.0 - sigma_next) * (x - sigma * velocity) + sigma_next * noise


def classifier_free_guidance(cond: Array, uncond: Array, guidance_scale: float) -> Array:
    """Return uncond + s (cond - uncond): https://arxiv.org/abs/2207.12598, Imagen's scale."""
    return uncond + guidance_scale * (cond - uncond)
