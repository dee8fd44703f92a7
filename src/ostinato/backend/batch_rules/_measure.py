"""Measure whether samples keep their bits when they are computed together."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

# No count of rows and no multiple that the probe tried made calls agree.
NEVER = sys.maxsize


class Agreement(NamedTuple):
    """Whether two results had the same bits, and the largest difference where they had not."""

    equal: bool
    largest_difference: float

    def __and__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.equal and other.equal, max(self.largest_difference, other.largest_difference)
        )


AGREED = Agreement(True, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation at one shape.

    op: the row of the table it belongs to. shape: of one sample, in words. samples: the shape of
    each input for one sample, without the batch axis. run: from inputs [B, *sample] to one tensor
    [B, ...].
    """

    op: str
    shape: str
    samples: tuple[tuple[int, ...], ...]
    run: Callable[..., torch.Tensor]


def compare(got: torch.Tensor, expected: torch.Tensor) -> Agreement:
    """Compare two tensors of one shape bit for bit; NaN differs from everything."""
    if torch.equal(got, expected):
        return AGREED
    largest = (got.double() - expected.double()).abs().max().item()
    return Agreement(False, math.inf if math.isnan(largest) else largest)


def stack_against_alone(
    case: Case, generator: torch.Generator, stacks: Sequence[int], dtype: torch.dtype
) -> Agreement:
    """Hold each sample of stacks of these sizes against the same sample computed alone.

    Inputs are drawn from the standard normal distribution, in float32, and cast to `dtype`.
    """
    batch = tuple(
        torch.randn(max(stacks), *sample, generator=generator).to(dtype) for sample in case.samples
    )
    # A copy, since alone a sample starts at the boundary that the allocator gives it.
    alone = [case.run(*(tensor[i : i + 1].clone() for tensor in batch)) for i in range(max(stacks))]
    found = AGREED
    for size in stacks:
        together = case.run(*(tensor[:size] for tensor in batch))
        for index in range(size):
            found = found & compare(together[index : index + 1], alone[index])
    return found


def all_of(agreements: Iterable[Agreement]) -> Agreement:
    """Combine agreements: equal when all are."""
    found = AGREED
    for agreement in agreements:
        found = found & agreement
    return found
