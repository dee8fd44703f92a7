"""Initial latents that a request brings: taken as a copy, so that the caller may change theirs."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.errors import InvalidRequest


def copied_latents(latents: object) -> torch.Tensor:
    """Return a dense float32 copy in main memory, apart from any gradient.

    Raises InvalidRequest for what is no array of finite floating-point numbers.
    """
    if isinstance(latents, np.ndarray):
        copy = _from_array(cast("NDArray[np.generic]", latents))
    elif isinstance(latents, torch.Tensor):
        copy = _from_tensor(latents)
    else:
        raise InvalidRequest(
            f"initial latents are a {type(latents).__name__}; expected a tensor or an array"
        )
    if not bool(torch.isfinite(copy).all()):
        raise InvalidRequest("initial latents hold NaN or infinity, in float32; expected finite")
    return copy


def _from_array(latents: NDArray[np.generic]) -> torch.Tensor:
    if latents.dtype.kind != "f":
        raise _refused(str(latents.dtype))
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused as such
        dense = np.array(latents, dtype=np.float32, order="C", subok=False)
    return torch.as_tensor(dense)


def _from_tensor(latents: torch.Tensor) -> torch.Tensor:
    if latents.is_meta or latents.layout is not torch.strided or not latents.is_floating_point():
        raise _refused(f"{latents.dtype}, {latents.layout}, on {latents.device}")
    dense = torch.empty(latents.shape, dtype=torch.float32)
    return dense.copy_(latents.detach())


def _refused(found: str) -> InvalidRequest:
    return InvalidRequest(
        f"initial latents are {found}; expected dense floating-point numbers with data"
    )
