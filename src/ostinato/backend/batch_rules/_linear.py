"""From how many rows on a linear gives a row the same bits whatever else is in the call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch

from ostinato.backend.batch_rules._kernels import Kernel
from ostinato.backend.batch_rules._measure import NEVER, Agreement, Case, compare

# Matrix products switch kernels where rows are few and run in blocks of up to some hundred rows
# above: every count up to 64, then counts beside the usual block sizes.
ROW_COUNTS = (*range(1, 65), 96, 127, 200, 383)
_ROWS_TOGETHER = 512
_STRIDE = 37  # prime, so that starts fall on all residues of a block


class LinearShape(NamedTuple):
    """Features in and out, with a bias or without."""

    in_features: int
    out_features: int
    bias: bool

    def describe(self) -> str:
        """Say it in words."""
        return f"{self.in_features} to {self.out_features}{', bias' if self.bias else ''}"


# Outputs of few features take another kernel as well, and one output a third, which never agrees.
QUICK_SHAPES = (
    LinearShape(32, 96, True),
    LinearShape(64, 64, False),
    LinearShape(96, 16, False),
    LinearShape(128, 2, True),
    LinearShape(128, 128, True),
    LinearShape(256, 256, False),
    LinearShape(384, 384, True),
    LinearShape(512, 192, False),
    LinearShape(768, 64, True),
    LinearShape(1024, 128, False),
    LinearShape(1536, 128, True),
    LinearShape(2048, 64, False),
)
# Rows of one sample, far above the counts that are tried one by one.
QUICK_LONG = (
    (1000, LinearShape(128, 128, True)),
    (257, LinearShape(1536, 64, False)),
)


def rows_that_differ(
    linear: Kernel, shape: LinearShape, generator: torch.Generator, dtype: torch.dtype
) -> dict[int, Agreement]:
    """Return those of `ROW_COUNTS` whose rows differ from the same rows in a call of 512."""
    width = shape.in_features
    hidden_states = torch.randn(_ROWS_TOGETHER, width, generator=generator).to(dtype)
    run = linear_of(linear, shape, generator, dtype)
    together = run(hidden_states)
    differing: dict[int, Agreement] = {}
    for count in ROW_COUNTS:
        # A request's rows may lie anywhere in the call, so they lie elsewhere each time.
        start = _STRIDE * count % (_ROWS_TOGETHER - count)
        rows = slice(start, start + count)
        found = compare(run(hidden_states[rows].clone()), together[rows])
        if not found.equal:
            differing[count] = found
    return differing


def least_rows(differing: Mapping[int, Agreement]) -> int:
    """Return the count from which all agreed; NEVER when the largest that was tried did not."""
    worst = max(differing, default=0)
    return NEVER if worst == max(ROW_COUNTS) else worst + 1


def linear_of(
    linear: Kernel, shape: LinearShape, generator: torch.Generator, dtype: torch.dtype
) -> Kernel:
    """Return a linear with weights that are drawn so that outputs have unit scale."""
    width, out_features, bias = shape
    weight = (torch.randn(out_features, width, generator=generator) / width**0.5).to(dtype)
    offset = torch.randn(out_features, generator=generator).to(dtype) if bias else None
    return partial(linear, weight=weight, bias=offset)


def long_case(
    linear: Kernel,
    rows: int,
    shape: LinearShape,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Case:
    """Return a linear over samples of many rows each."""
    return Case(
        op="linear, many rows",
        shape=f"{rows} x {shape.describe()}",
        samples=((rows, shape.in_features),),
        run=linear_of(linear, shape, generator, dtype),
    )
