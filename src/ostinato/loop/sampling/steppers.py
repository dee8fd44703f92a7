"""Samplers as pure functions of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from ostinato.errors import InvalidRequest
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling.sampler import Sampler
from ostinato.loop.sampling.schedules import Schedule, flow_schedule


@dataclass(frozen=True, slots=True)
class FlowEuler:
    """The explicit Euler rule on dx/dsigma = v."""

    def schedule(self, num_steps: int, flow_shift: float | None) -> Schedule:
        """Return evenly spaced shifted sigmas."""
        return flow_schedule(num_steps, 1.0 if flow_shift is None else flow_shift)

    def start(self, schedule: Schedule, noise: NoiseStream, block: int) -> None:
        """Euler remembers nothing."""

    def step(
        self,
        x: torch.Tensor,
        prediction: torch.Tensor,
        sigma: float,
        sigma_next: float,
        memory: None,
    ) -> tuple[torch.Tensor, None]:
        """Return x + (sigma_next - sigma) v."""
        return x + (sigma_next - sigma) * prediction, None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenoiseMemory:
    """Where the next fresh noise comes from: the request's stream, the block, the step."""

    noise: NoiseStream
    block: int
    step: int


@dataclass(frozen=True, slots=True)
class FlowRenoise:
    """Predict the clean latents, then noise them afresh to the next level.

    The sampler of few-step consistency-style weights (https://arxiv.org/abs/2303.01469,
    multistep sampling). Fresh noise is keyed by (request seed, block, step), so no two requests
    share it.
    """

    def schedule(self, num_steps: int, flow_shift: float | None) -> Schedule:
        """Return evenly spaced shifted sigmas."""
        return flow_schedule(num_steps, 1.0 if flow_shift is None else flow_shift)

    def start(self, schedule: Schedule, noise: NoiseStream, block: int) -> RenoiseMemory:
        """Remember whose noise to draw."""
        return RenoiseMemory(noise=noise, block=block, step=0)

    def step(
        self,
        x: torch.Tensor,
        prediction: torch.Tensor,
        sigma: float,
        sigma_next: float,
        memory: RenoiseMemory,
    ) -> tuple[torch.Tensor, RenoiseMemory]:
        """Return (1 - sigma_next) x0 + sigma_next noise with x0 = x - sigma v."""
        following = replace(memory, step=memory.step + 1)
        clean = x - sigma * prediction
        if sigma_next == 0:
            return clean, following
        fresh = memory.noise.normal(tuple(x.shape), "renoise", memory.block, memory.step)
        return (1 - sigma_next) * clean + sigma_next * fresh.to(x), following


SAMPLERS: Mapping[str, Sampler[object]] = MappingProxyType(
    {"euler": FlowEuler(), "renoise": FlowRenoise()}  # type: ignore[dict-item]
)


def sampler_by_name(name: str) -> Sampler[object]:
    """Return one of the pure samplers; raises InvalidRequest with the valid names."""
    for problem in unknown_sampler(name):
        raise InvalidRequest(problem)
    return SAMPLERS[name]


def unknown_sampler(name: str) -> tuple[str, ...]:
    """Say what is wrong when a name is none of the pure samplers; empty when it is."""
    return () if name in SAMPLERS else (f"no sampler {name!r}; valid: {sorted(SAMPLERS)}",)
