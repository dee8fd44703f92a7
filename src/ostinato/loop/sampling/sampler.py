"""The sampler contract: `step(x, prediction, sigma, sigma_next, memory) -> x, memory`.

A sampler object is shared and stateless; what it remembers between steps is `memory`, a value in
the loop's state. The prediction is always what the network was trained for (here: flow velocity
v = noise - clean); another parametrisation is an adapter around the network, never a branch here.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch

from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling.schedules import Schedule

M = TypeVar("M")


class Sampler(Protocol[M]):
    """A schedule and a step rule."""

    def schedule(self, num_steps: int, flow_shift: float | None) -> Schedule:
        """Return the steps; None leaves the sampler's own flow shift."""
        ...

    def start(self, schedule: Schedule, noise: NoiseStream, block: int) -> M:
        """Return the memory before the first step of one block (0 when there is only one)."""
        ...

    def step(
        self, x: torch.Tensor, prediction: torch.Tensor, sigma: float, sigma_next: float, memory: M
    ) -> tuple[torch.Tensor, M]:
        """Move x [B, ...] from sigma to sigma_next; pure."""
        ...
