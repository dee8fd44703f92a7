"""A tolerance allows any shape in the dtype that it was measured in, and promises no bits."""

from __future__ import annotations

import pytest
import torch

from ostinato.backend.batch_rules import (
    Attention,
    BatchRules,
    Linear,
    LinearShape,
    Rows,
    StackShapes,
    ToleranceRules,
)

ALL = BatchRules(linear_rows=1, activation_multiple=1, attention=True, norms=True)


def shapes(dtype: torch.dtype) -> StackShapes:
    """One row of an odd width, one output: what no measured rule allows."""
    return StackShapes(
        linears=(Linear(1, LinearShape(7, 1, True)),),
        attentions=(Attention(1, 1, 1, 7),),
        norms=(Rows(1, 7),),
        activations=(Rows(1, 7),),
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_shape_of_the_measured_dtype_is_allowed(dtype: torch.dtype) -> None:
    rules = ToleranceRules(dtype=dtype)
    assert rules.stacks(shapes(dtype), 16)
    assert not rules.exact
    assert rules.trials_s == 0.0


def test_another_dtype_is_refused_by_either_kind_of_rules() -> None:
    assert not ToleranceRules(dtype=torch.float32).stacks(shapes(torch.bfloat16), 2)
    whole = StackShapes((Linear(8, LinearShape(16, 16, True)),), (), (), (), torch.float32)
    assert ALL.exact
    assert ALL.stacks(whole, 2)
    assert not ALL.stacks(whole._replace(dtype=torch.bfloat16), 2)
