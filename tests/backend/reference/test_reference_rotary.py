"""3D rotary positions: against the served tables, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from ostinato.backend.nets.rotary import rotary_tables
from ostinato.backend.nets.rotary import rotate as rotate_served
from ostinato.backend.reference.arrays import Array
from ostinato.backend.reference.rotary import RotaryAngles, rotary_angles, rotate


def test_angles_and_rotation_are_the_served_ones(normal: Callable[..., Array]) -> None:
    """Served tables are float32, so the comparison is to 1e-7."""
    positions = np.array([[0.0, 1.0], [700.0, 5000.0]])
    found = rotary_angles(positions, rows=3, columns=2, head_dim=32)
    tables = rotary_tables(torch.tensor(positions).long(), rows=3, columns=2, head_dim=32)
    for mine, served in zip(found, tables, strict=True):
        assert mine.shape == (2, 12, 1, 16)
        np.testing.assert_allclose(mine, served[..., 0::2].numpy(), atol=1e-7)
    x = normal(2, 12, 3, 32)
    served = rotate_served(torch.from_numpy(x), *(table.double() for table in tables))
    np.testing.assert_allclose(rotate(x, found), served.numpy(), atol=1e-6)


def test_positions_without_a_batch_serve_every_sample() -> None:
    angles = rotary_angles(np.array([4.0, 5.0]), rows=2, columns=3, head_dim=16)
    assert angles.cos.shape == (1, 12, 1, 8)
    batched = rotary_angles(np.array([[4.0, 5.0]]), rows=2, columns=3, head_dim=16)
    np.testing.assert_array_equal(angles.sin, batched.sin)


def test_angles_by_hand() -> None:
    """Eight wide: two pairs for the frame, one for the row, one for the column."""
    angles = rotary_angles(np.array([3.0]), rows=2, columns=2, head_dim=8)
    frame = [math.sin(3.0), math.sin(3.0 / 100.0)]  # theta^(2/4) = 100
    expected = [[*frame, math.sin(row), math.sin(column)] for row in (0, 1) for column in (0, 1)]
    np.testing.assert_allclose(angles.sin[0, :, 0], expected, rtol=1e-15)


def test_rotation_by_hand() -> None:
    """A quarter turn takes (1, 0) to (0, 1); pairs are neighbours."""
    quarter = RotaryAngles(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    turned = rotate(np.array([1.0, 0.0, 5.0, 6.0]).reshape(1, 1, 1, 4), quarter)
    np.testing.assert_array_equal(turned.ravel(), [0.0, 1.0, 5.0, 6.0])
