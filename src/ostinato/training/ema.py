"""Exponential moving average of weights, in float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def ema_decay_at(decay: float, num_updates: int) -> float:
    """Return the decay of update number `num_updates` (0 first): min(d, (1 + n) / (10 + n))."""
    return min(decay, (1 + num_updates) / (10 + num_updates))


class WeightAverage:
    """Keep `average = d * average + (1 - d) * weights` for named parameters."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.tensors = {name: value.detach().clone().float() for name, value in parameters.items()}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, Tensor], num_updates: int) -> None:
        """Fold the current weights in."""
        weight = 1.0 - ema_decay_at(self.decay, num_updates)
        for name, average in self.tensors.items():
            average.lerp_(parameters[name].detach(), weight)

    @torch.no_grad()
    def copy_to(self, parameters: Mapping[str, Tensor]) -> None:
        """Overwrite the given parameters with the average."""
        for name, value in self.tensors.items():
            parameters[name].copy_(value)
