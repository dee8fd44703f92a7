"""The shapes in which a model runs what it stacks, and whether samples keep their bits in them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ostinato.backend.batch_rules._activations import activations
from ostinato.backend.batch_rules._cases import Attention, attend_case, row_norm_cases
from ostinato.backend.batch_rules._kernels import Kernels
from ostinato.backend.batch_rules._linear import LinearShape, long_case
from ostinato.backend.batch_rules._measure import Case, stack_against_alone

_DTYPE = torch.float32
_SEED = 20260905


class Rows(NamedTuple):
    """Rows of one sample that a norm or an activation takes, and the elements of each."""

    rows: int
    width: int


class Linear(NamedTuple):
    """Rows of one sample that a linear takes, and its features."""

    rows: int
    shape: LinearShape


class StackShapes(NamedTuple):
    """What runs for all samples of a stack at once, each in the shape that one sample has.

    What runs sample by sample inside the stack is not listed. dtype: of the samples.
    """

    linears: tuple[Linear, ...]
    attentions: tuple[Attention, ...]
    norms: tuple[Rows, ...]
    activations: tuple[Rows, ...]
    dtype: torch.dtype


class Trials:
    """Tries a model's own shapes when they are first stacked, and keeps each verdict.

    A kernel chooses its blocks by the sizes that it gets, so verdicts at other sizes say little.
    A trial takes about as long as two layers of the stack that it is made for.
    """

    def __init__(self, kernels: Kernels) -> None:
        """Try these kernels."""
        self._kernels = kernels
        self._verdicts: dict[tuple[StackShapes, int, int], bool] = {}
        self._spent_s = 0.0

    @property
    def spent_s(self) -> float:
        """Seconds that trials took so far."""
        return self._spent_s

    def agree(self, shapes: StackShapes, num_samples: int) -> bool:
        """Tell whether samples keep their bits in a stack of so many, at the threads in force."""
        key = (shapes, num_samples, torch.get_num_threads())
        if key not in self._verdicts:
            started = time.perf_counter()
            self._verdicts[key] = self._try(shapes, num_samples)
            self._spent_s += time.perf_counter() - started
        return self._verdicts[key]

    def _try(self, shapes: StackShapes, num_samples: int) -> bool:
        generator = torch.Generator().manual_seed(_SEED)
        # Two as well: alone, a guided request is a stack of its two branches.
        stacks = sorted({min(2, num_samples), num_samples})
        with torch.no_grad():
            return all(
                stack_against_alone(case, generator, stacks, _DTYPE).equal
                for case in _cases(shapes, self._kernels, generator)
            )


def _cases(shapes: StackShapes, kernels: Kernels, generator: torch.Generator) -> Iterator[Case]:
    for rows, shape in shapes.linears:
        yield long_case(kernels.linear, rows, shape, generator, _DTYPE)
    for size in shapes.attentions:
        yield attend_case(kernels, size)
    for rows, width in shapes.norms:
        yield from row_norm_cases(kernels, rows, width)
    for rows, width in shapes.activations:
        for activation in activations(kernels):
            yield Case(
                op=activation.name,
                shape=f"{rows} x {width}",
                samples=((rows, width),),
                run=activation.run,
            )
