"""The multiple of elements per row at which activations do not depend on the batch.

An element-wise kernel runs full vectors and then a scalar tail, which rounds differently; with
several threads the flat range is cut into one part a thread, and every part has a tail. So what
matters is whether vectors and parts end where rows end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from ostinato.backend.batch_rules._kernels import Kernel, Kernels
from ostinato.backend.batch_rules._measure import (
    AGREED,
    NEVER,
    Agreement,
    Case,
    all_of,
    stack_against_alone,
)

# Elements below which a kernel stays on one thread (at::internal::GRAIN_SIZE of PyTorch).
_GRAIN = 32768
# No model's rows are multiples of more than this.
_LARGEST_MULTIPLE = 4096
_STACKS = (2, 3, 5)


class Activation(NamedTuple):
    """A kernel that is applied to each element by itself."""

    name: str
    run: Kernel


class Multiple(NamedTuple):
    """The least multiple at which calls agree, and the largest difference below it."""

    elements: int
    below: Agreement


def activations(kernels: Kernels) -> tuple[Activation, ...]:
    """Return what transformer blocks and time embeddings apply."""
    return (
        Activation("SiLU", kernels.silu),
        Activation("GELU, tanh", partial(kernels.gelu, approximate="tanh")),
        Activation("sine", kernels.sin),
    )


def least_multiple(
    activation: Activation, generator: torch.Generator, dtype: torch.dtype
) -> Multiple:
    """Find the least candidate whose own multiples all agree, NEVER when none does."""
    below = AGREED
    for candidate in _candidates(torch.get_num_threads()):
        found = all_of(
            stack_against_alone(case, generator, _STACKS, dtype)
            for factor in (1, 3, 5)
            for case in _cases(activation, factor * candidate, torch.get_num_threads())
        )
        if found.equal:
            return Multiple(candidate, below)
        below = below & found
    return Multiple(NEVER, below)


def common_multiple(multiples: Iterator[int]) -> int:
    """Return the multiple that suits all; NEVER when one of them is, or none that was tried."""
    found = list(multiples)
    common = NEVER if NEVER in found else math.lcm(*found)
    return common if common <= _LARGEST_MULTIPLE else NEVER


def _candidates(num_threads: int) -> list[int]:
    """Vectors are powers of two; parts are equal where the count divides by that of threads."""
    parts = {math.lcm(*range(1, used + 1)) for used in range(1, num_threads + 1)}
    found = {2**power * count for power in range(9) for count in parts}
    return sorted(count for count in found if count <= _LARGEST_MULTIPLE)


def _cases(activation: Activation, elements: int, num_threads: int) -> Iterator[Case]:
    """Odd counts of rows: a few, and for each number of threads what makes a stack of 3 use it."""
    counts = {1, 7}
    for threads in range(2, num_threads + 2):
        counts.add(int((threads - 0.5) * _GRAIN / (3 * elements)) | 1)
    for rows in sorted(counts):
        yield Case(
            op=activation.name,
            shape=f"{rows} x {elements}",
            samples=((rows, elements),),
            run=activation.run,
        )
