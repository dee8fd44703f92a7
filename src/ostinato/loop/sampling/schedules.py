"""Noise schedules of rectified flow: sigma 1 is noise, 0 is clean; model time is 1000 sigma."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# The scale of the timestep that flow-matching networks of this field are fed (SD3, Flux, Wan).
NUM_TRAIN_TIMESTEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One request's steps.

    timesteps: [n], what the network is fed, in the dtype its sampler dictates.
    sigmas: float32 [n + 1], decreasing, the last is where the trajectory ends.
    flow_shift: the shift that was asked for, None for the sampler's own.
    """

    timesteps: torch.Tensor
    sigmas: torch.Tensor
    flow_shift: float | None

    @property
    def num_steps(self) -> int:
        """Count of network evaluations."""
        return self.timesteps.shape[0]


def shift_sigmas(sigmas: torch.Tensor, flow_shift: float) -> torch.Tensor:
    """Shift the schedule towards noise: k sigma / (1 + (k - 1) sigma).

    Source: https://arxiv.org/abs/2403.03206, resolution-dependent shifting.
    """
    return flow_shift * sigmas / (1 + (flow_shift - 1) * sigmas)


def flow_schedule(num_steps: int, flow_shift: float) -> Schedule:
    """Make `num_steps` evenly spaced sigmas from 1 to 0, shifted; computed in float64."""
    assert num_steps >= 1, num_steps
    assert flow_shift > 0, flow_shift
    sigmas = shift_sigmas(torch.linspace(1, 0, num_steps + 1, dtype=torch.float64), flow_shift)
    sigmas = sigmas.to(torch.float32)
    return Schedule(
        timesteps=sigmas[:-1] * NUM_TRAIN_TIMESTEPS, sigmas=sigmas, flow_shift=flow_shift
    )
