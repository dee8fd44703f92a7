"""Muon with all matrices of one shape orthogonalised in one batched product.

The update is that of `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`; that class loops
over matrices, which on a CPU costs a sixth of a train step of a small model.
"""

# M matrix, R row, S column

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Quintic Newton-Schulz coefficients of Jordan et al. 2024 (the defaults of torch.optim.Muon).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_NUM_ITERATIONS = 5
_EPS = 1e-7
_RMS_OF_ADAMW = 0.2  # Liu et al. 2025, "Muon is Scalable for LLM Training"


def orthogonalise(matrices_MRS: Tensor) -> Tensor:
    """Push the singular values of each matrix toward 1 by Newton-Schulz in bfloat16."""
    x = matrices_MRS.bfloat16()
    transposed = x.shape[1] > x.shape[2]
    if transposed:
        x = x.transpose(1, 2)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(_EPS)
    for _ in range(_NUM_ITERATIONS):
        gram = torch.bmm(x, x.transpose(1, 2))
        update = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
        x = torch.baddbmm(x, update, x, beta=_A)
    return x.transpose(1, 2) if transposed else x


class BatchedMuon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum for 2-D parameters."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take one step; parameters without a gradient are left alone."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                rate = group["lr"] * _RMS_OF_ADAMW * math.sqrt(max(shape))
                updates = self._updates(parameters, group["momentum"])
                torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, updates, alpha=-rate)

    def _updates(self, parameters: list[nn.Parameter], momentum: float) -> list[Tensor]:
        gradients = [p.grad for p in parameters if p.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
        nesterov = torch._foreach_lerp(gradients, buffers, momentum)
        return list(orthogonalise(torch.stack(nesterov)).float().unbind(0))
