"""RMS norm over the width and the rotation of pairs, as one differentiable op for training.

Autograd over the plain expression makes about thirty passes over memory in bfloat16; the backward
written here makes eight, and a training step on a CPU is bound by such passes.
"""
# B batch, L token, N head, E head width, D width

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch

from ostinato.backend.nets.rotary import RotaryTables


class WideRotary(NamedTuple):
    """Tables for all heads at once, [1 or B, L, D], and the signed swap of each pair, [D,D].

    `hidden * cos + (hidden @ swap) * sin` is the rotation: the product is exact, since a column of
    `swap` holds a single 1 or -1, and it runs at the speed of a linear where strided access to
    even and odd elements does not vectorise.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    swap: torch.Tensor


def widen(tables: RotaryTables, *, num_heads: int, dtype: torch.dtype) -> WideRotary:
    """Lay the tables out over `num_heads` heads in `dtype`."""
    cos, sin = (table.to(dtype).tile(1, 1, 1, num_heads).squeeze(2) for table in tables)
    width = cos.shape[-1]
    even = torch.arange(0, width, 2, device=cos.device)
    swap = torch.zeros(width, width, dtype=dtype, device=cos.device)
    swap[even + 1, even] = -1
    swap[even, even + 1] = 1
    return WideRotary(cos, sin, swap)


def norm_rotate(
    hidden_BLD: torch.Tensor, weight_D: torch.Tensor, eps: float, rotary: WideRotary | None
) -> torch.Tensor:
    """Normalise over the width, scale, and rotate where `rotary` is given; dtype as the input."""
    cos, sin, swap = (None, None, None) if rotary is None else rotary
    return cast(torch.Tensor, _NormRotate.apply(hidden_BLD, weight_D, eps, cos, sin, swap))


class _NormRotate(torch.autograd.Function):
    """The tables are None where there is no rotation; they carry no gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # what save_for_backward leaves on it is not in torch's types
        hidden: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        swap: torch.Tensor | None,
    ) -> torch.Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=wide)
        inverse = (norm.square() / hidden.shape[-1] + eps).rsqrt().to(hidden.dtype)
        normed = hidden * inverse
        ctx.save_for_backward(normed, inverse, weight, cos, sin, swap)
        scaled = normed * weight.to(hidden.dtype)
        if cos is None or sin is None or swap is None:
            return scaled
        return torch.addcmul(scaled * cos, scaled @ swap, sin)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        normed, inverse, weight, cos, sin, swap = ctx.saved_tensors
        if swap is not None:
            grad = torch.addcmul((grad * sin) @ swap.mT, grad, cos)
        product = grad * normed
        grad_weight = product.sum((0, 1), dtype=weight.dtype)
        scale = weight.to(grad.dtype)
        projection = (product.flatten(0, 1) @ (scale / scale.numel())).view_as(inverse)
        grad_hidden = torch.addcmul(grad * scale, normed, projection, value=-1) * inverse
        return grad_hidden, grad_weight, None, None, None, None
