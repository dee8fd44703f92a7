"""What a cast to bytes would hide: NaN has no byte, so it is looked for before the cast."""

from __future__ import annotations

import torch

from ostinato.errors import NonFinite


def require_finite(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the tensor itself; raises NonFinite that names it and counts what is wrong."""
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return tensor
    count = int(tensor.numel() - finite.sum())
    raise NonFinite(f"{name!r} holds NaN or infinity in {count} of {tensor.numel()} values")
