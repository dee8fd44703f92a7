"""Looking for NaN and infinity: after every step, and before a cast to bytes would hide them."""

from __future__ import annotations

import math

import torch

from ostinato.errors import NonFinite


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no value of a floating-point tensor is NaN or infinite; any shape, any dtype.

    One pass: NaN and infinity survive a sum. A sum of finite values may overflow, so values are
    looked at one by one when it is not finite.
    """
    values = tensor.detach()
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def require_finite(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the tensor itself; raises NonFinite that names it and counts what is wrong."""
    if is_finite(tensor):
        return tensor
    finite = torch.isfinite(tensor)
    count = int(tensor.numel() - finite.sum())
    raise NonFinite(f"{name!r} holds NaN or infinity in {count} of {tensor.numel()} values")
