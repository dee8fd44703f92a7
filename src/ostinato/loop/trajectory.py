"""One trajectory from noise to latents: the part that every denoising loop shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ostinato.backend.finite import is_finite
from ostinato.errors import NonFinite
from ostinato.loop.noise import NoiseStream
from ostinato.loop.policies.guidance import Branch, GuidanceRule
from ostinato.loop.sampling import Sampler, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Latents between two steps, float32 [1, C, T, H, W]; step counts evaluations done.

    memory: what the sampler remembers. guidance_state: what the guidance rule remembers.
    """

    sampler: Sampler[object]
    schedule: Schedule
    latents: torch.Tensor
    step: int
    memory: object
    guidance_state: object

    @staticmethod
    def begin(
        sampler: Sampler[object],
        schedule: Schedule,
        latents: torch.Tensor,
        noise: NoiseStream,
        block: int = 0,
    ) -> Trajectory:
        """Start at the first step of a block's schedule."""
        return Trajectory(
            sampler=sampler,
            schedule=schedule,
            latents=latents,
            step=0,
            memory=sampler.start(schedule, noise, block),
            guidance_state=None,
        )

    @property
    def done(self) -> bool:
        """Whether every step has been taken."""
        return self.step == self.schedule.num_steps

    @property
    def timestep(self) -> torch.Tensor:
        """What the network is fed at this step, a scalar tensor."""
        return self.schedule.timesteps[self.step]

    def advance(
        self,
        rule: GuidanceRule,
        predictions: Mapping[Branch, torch.Tensor],
        guidance_scale: float,
    ) -> Trajectory:
        """Combine the branches' predictions and take one sampler step; pure."""
        sigma = float(self.schedule.sigmas[self.step])
        sigma_next = float(self.schedule.sigmas[self.step + 1])
        prediction, guidance_state = rule.combine(
            predictions, guidance_scale, self.latents, sigma, self.guidance_state
        )
        latents, memory = self.sampler.step(
            self.latents, prediction, sigma, sigma_next, self.memory
        )
        if not is_finite(latents):
            raise NonFinite(
                f"denoise step {self.step + 1} of {self.schedule.num_steps} left NaN or infinity "
                f"in the latents (guidance_scale {guidance_scale:g}, sigma {sigma:g})"
            )
        return replace(
            self,
            latents=latents,
            memory=memory,
            guidance_state=guidance_state,
            step=self.step + 1,
        )
