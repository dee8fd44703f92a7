"""Rotary position tables of Wan at absolute positions, and the rotation itself.

Tables are computed, not looked up, so a stream has no length limit; for positions 0..T-1 they are
equal to the library's table bit for bit.
"""
# B batch, T latent frame, L token, N head, E head width

from __future__ import annotations

from typing import NamedTuple

import torch

# Wan builds WanRotaryPosEmbed with its default theta (diffusers transformer_wan.py).
WAN_ROPE_THETA = 10000.0


class RotaryTables(NamedTuple):
    """Float32 cos and sin [1 or B, L, 1, E]; each angle appears twice, as the library lays it."""

    cos: torch.Tensor
    sin: torch.Tensor


def rotary_tables(
    positions: torch.Tensor, *, rows: int, columns: int, head_dim: int
) -> RotaryTables:
    """Compute the tables of frames at `positions`, each a grid of `rows` x `columns` tokens.

    `positions` is int64 [T], or [B,T] where samples stand at different positions. Angles are
    float64 and only the tables are rounded to float32: at frame 5000 a float32 angle would be off
    by 5e-4.
    """
    device = positions.device
    height_dim = width_dim = 2 * (head_dim // 6)
    frame_dim = head_dim - height_dim - width_dim
    frame_BTE = _angles(positions, frame_dim)
    if positions.ndim == 1:
        frame_BTE = frame_BTE.unsqueeze(0)
    row_HE = _angles(torch.arange(rows, device=device), height_dim)
    column_WE = _angles(torch.arange(columns, device=device), width_dim)
    grid = (*frame_BTE.shape[:2], rows, columns, -1)
    angles_BTHWE = torch.cat(
        (
            frame_BTE[:, :, None, None].expand(grid),
            row_HE[None, None, :, None].expand(grid),
            column_WE[None, None, None].expand(grid),
        ),
        dim=-1,
    )
    angles_BL1E = angles_BTHWE.flatten(1, 3).unsqueeze(2)
    cos, sin = angles_BL1E.cos(), angles_BL1E.sin()
    return RotaryTables(
        cos.float().repeat_interleave(2, dim=-1, output_size=head_dim),
        sin.float().repeat_interleave(2, dim=-1, output_size=head_dim),
    )


def rotate(hidden_states_BLNE: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate interleaved pairs of queries or keys; same dtype as the input."""
    first, second = hidden_states_BLNE.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[..., 0::2], sin[..., 0::2]
    rotated = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return rotated.flatten(-2).type_as(hidden_states_BLNE)


def _angles(positions: torch.Tensor, dim: int) -> torch.Tensor:
    """Angles float64 [..., dim / 2] by the library's expression, so that their bits agree."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
    return positions.to(torch.float64).unsqueeze(-1) * (1.0 / (WAN_ROPE_THETA**exponents))
