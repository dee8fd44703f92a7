"""Muon with all matrices of one shape orthogonalised in one batched product.

The update is that of `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`; that class loops
over matrices, which on a CPU costs a sixth of a train step of a small model.
"""

# M matrix, R row, S column

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

# Quintic Newton-Schulz coefficients of Jordan et al. 2024 (the defaults of torch.optim.Muon).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_NUM_ITERATIONS = 5
_EPS = 1e-7
_RMS_OF_ADAMW = 0.2  # Liu et al. 2025, "Muon is Scalable for LLM Training"


def orthogonalise(matrices_MRS: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Push the singular values of each matrix toward 1 by Newton-Schulz in `dtype`."""
    x = matrices_MRS.to(dtype)
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
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Orthogonalise in `dtype`: bfloat16 where the processor has units for it."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step; parameters without a gradient are left alone."""
        assert closure is None, "the trainer computes the loss; a closure has no use here"
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                rate = group["lr"] * _RMS_OF_ADAMW * math.sqrt(max(shape))
                updates = self._updates(parameters, group["momentum"])
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-rate)

    def _updates(self, parameters: list[nn.Parameter], momentum: float) -> list[Tensor]:
        nesterov: list[Tensor] = []
        for parameter in parameters:
            gradient, state = parameter.grad, self.state[parameter]
            assert gradient is not None
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            state["momentum_buffer"].lerp_(gradient, 1.0 - momentum)
            nesterov.append(gradient.lerp(state["momentum_buffer"], momentum))
        return list(orthogonalise(torch.stack(nesterov), self._dtype).float().unbind(0))
