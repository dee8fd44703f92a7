"""From how many rows on a linear gives a row the same bits whatever else is in the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ostinato.backend.batch_rules._kernels import Kernel
from ostinato.backend.batch_rules._measure import AGREED, Agreement, compare
from ostinato.backend.batch_rules._rules import NEVER

# Matrix products switch kernels where rows are few and run in blocks of up to some hundred rows
# above: every count up to 64, then counts beside the usual block sizes.
ROW_COUNTS = (*range(1, 65), 96, 127, 200, 383)
_ROWS_TOGETHER = 512


class LinearShape(NamedTuple):
    """Features in and out, with a bias or without."""

    in_features: int
    out_features: int
    bias: bool


# Widths of models, and the expansion and contraction of a feed-forward.
QUICK_SHAPES = (
    LinearShape(32, 96, True),
    LinearShape(64, 64, False),
    LinearShape(128, 128, True),
    LinearShape(256, 256, False),
    LinearShape(384, 384, True),
    LinearShape(512, 192, False),
    LinearShape(768, 64, True),
    LinearShape(1024, 128, False),
    LinearShape(1536, 128, True),
    LinearShape(2048, 64, False),
)


def rows_that_differ(
    linear: Kernel,
    shape: LinearShape,
    generator: torch.Generator,
    dtype: torch.dtype,
    row_counts: Sequence[int] = ROW_COUNTS,
) -> dict[int, Agreement]:
    """Return the row counts whose rows differ from the same rows in a call of 512."""
    width, out_features, bias = shape
    hidden_states = torch.randn(_ROWS_TOGETHER, width, generator=generator).to(dtype)
    weight = (torch.randn(out_features, width, generator=generator) / width**0.5).to(dtype)
    offset = torch.randn(out_features, generator=generator).to(dtype) if bias else None
    together = linear(hidden_states, weight, offset)
    differing: dict[int, Agreement] = {}
    for count in row_counts:
        found = AGREED
        # The first rows, and rows amid the others: both places that a request can have.
        for start in (0, (37 * count) % (_ROWS_TOGETHER - count)):
            rows = slice(start, start + count)
            found = found & compare(
                linear(hidden_states[rows].clone(), weight, offset), together[rows]
            )
        if not found.equal:
            differing[count] = found
    return differing


def least_rows(differing: Sequence[int], row_counts: Sequence[int] = ROW_COUNTS) -> int:
    """Return the count from which all agreed; NEVER when the largest that was tried did not."""
    worst = max(differing, default=0)
    return NEVER if worst == max(row_counts) else worst + 1
