"""What a cast to bytes would hide is found before it."""

from __future__ import annotations

import pytest
import torch

from ostinato.backend.finite import is_finite, require_finite
from ostinato.errors import NonFinite


def test_finite_values_pass_as_they_are() -> None:
    tensor = torch.tensor([-3.4e38, 0.0, 3.4e38])
    assert require_finite(tensor, "frames") is tensor


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_value_is_named_and_counted(value: float) -> None:
    tensor = torch.zeros(2, 3)
    tensor[1, 2] = value
    with pytest.raises(NonFinite, match=r"'frames' .* in 1 of 6 values"):
        require_finite(tensor, "frames")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_sum_that_overflows_is_no_fault(dtype: torch.dtype) -> None:
    largest = torch.full((64,), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(largest)
    for value in (float("nan"), float("inf"), -float("inf")):
        largest[17] = value
        assert not is_finite(largest)


def test_infinities_that_cancel_are_seen() -> None:
    assert not is_finite(torch.tensor([float("inf"), -float("inf"), 0.0]))
    assert is_finite(torch.empty(0))
