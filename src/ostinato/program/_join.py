"""Join the pieces of a streamed slot along their first axis."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.errors import InvalidPlan


def join_pieces(slot: str, pieces: tuple[object, ...]) -> object:
    """Concatenate tensors or arrays; raises InvalidPlan for anything else."""
    if all(isinstance(piece, torch.Tensor) for piece in pieces):
        return torch.cat([p for p in pieces if isinstance(p, torch.Tensor)])
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(cast("tuple[NDArray[np.generic], ...]", pieces))
    kinds = sorted({type(piece).__name__ for piece in pieces})
    raise InvalidPlan(f"pieces of slot {slot!r} are {kinds}; only tensors or arrays join")
