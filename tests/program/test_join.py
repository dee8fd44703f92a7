"""Pieces of a streamed slot become one value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ostinato.errors import InvalidPlan
from ostinato.program._join import join_pieces


def test_tensors_and_arrays_join_along_their_first_axis() -> None:
    tensors = join_pieces("s", (torch.zeros(2, 3), torch.ones(1, 3)))
    assert isinstance(tensors, torch.Tensor)
    assert tensors.tolist() == [[0] * 3, [0] * 3, [1] * 3]
    arrays = join_pieces("s", (np.zeros((1, 2), np.uint8), np.ones((1, 2), np.uint8)))
    assert isinstance(arrays, np.ndarray)
    assert arrays.dtype == np.uint8
    assert arrays.tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("pieces", [(1, 2), (torch.zeros(1), np.zeros(1)), ("a", "b")])
def test_anything_else_does_not_join(pieces: tuple[object, ...]) -> None:
    with pytest.raises(InvalidPlan, match="pieces of slot 's' are"):
        join_pieces("s", pieces)
