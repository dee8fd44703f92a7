"""3D rotary positions of Wan in float64, at absolute positions."""
# B batch, T latent frame, L token, N head, E head width

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ostinato.backend.reference.arrays import Array

# Source: https://arxiv.org/abs/2104.09864, section 3.2.2; Wan keeps the value.
THETA = 10000.0


class RotaryAngles(NamedTuple):
    """Cosine and sine of every pair's angle, each [1 or B, L, 1, E / 2]."""

    cos: Array
    sin: Array


def rotary_angles(positions: Array, *, rows: int, columns: int, head_dim: int) -> RotaryAngles:
    """Compute the angles of frames at `positions` [T] or [B,T], each a grid of tokens.

    A head's pairs are shared out among frame, row and column: a third (rounded down to whole pairs)
    to row and to column each, the rest to the frame. Pair i of an axis of width d turns by
    position / theta^(2 i / d).
    """
    spatial_dim = 2 * (head_dim // 6)
    frames_BTE = _turns(positions, head_dim - 2 * spatial_dim)
    if positions.ndim == 1:
        frames_BTE = frames_BTE[None]
    rows_HE = _turns(np.arange(rows, dtype=np.float64), spatial_dim)
    columns_WE = _turns(np.arange(columns, dtype=np.float64), spatial_dim)
    grid = (*frames_BTE.shape[:2], rows, columns)
    axes = (
        frames_BTE[:, :, None, None],
        rows_HE[None, None, :, None],
        columns_WE[None, None, None],
    )
    angles = np.concatenate([np.broadcast_to(a, (*grid, a.shape[-1])) for a in axes], axis=-1)
    angles_BL1E = angles.reshape(grid[0], -1, 1, head_dim // 2)
    return RotaryAngles(np.cos(angles_BL1E), np.sin(angles_BL1E))


def rotate(x_BLNE: Array, angles: RotaryAngles) -> Array:
    """Turn the pairs (x0, x1), (x2, x3), ... of queries or keys, each by its angle."""
    first, second = x_BLNE[..., 0::2], x_BLNE[..., 1::2]
    turned = (first * angles.cos - second * angles.sin, first * angles.sin + second * angles.cos)
    return np.stack(turned, axis=-1).reshape(x_BLNE.shape)


def _turns(positions: Array, dim: int) -> Array:
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    return positions[..., None] / THETA**exponents
