"""The multiple of elements per row at which activations do not depend on the batch.

An element-wise kernel runs full vectors and then a scalar tail, which rounds differently; with
several threads the flat range is cut into one part a thread, and every part has a tail. So what
matters is whether vectors and parts end where rows end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from ostinato.backend.batch_rules._kernels import Kernels
from ostinato.backend.batch_rules._measure import Agreement, Case, all_of, stack_against_alone
from ostinato.backend.batch_rules._rules import NEVER

# Elements below which a kernel stays on one thread (at::internal::GRAIN_SIZE of PyTorch).
_GRAIN = 32768
# No model's rows are multiples of more than this.
_LARGEST_MULTIPLE = 4096
_STACKS = (2, 3, 5)


def activation_cases(kernels: Kernels, elements: int, num_threads: int) -> Iterator[Case]:
    """Yield each activation over rows of this many elements, at all the ways rows are cut."""
    runs: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
        ("silu", kernels.silu),
        ("gelu", partial(kernels.gelu, approximate="tanh")),
        ("sin", kernels.sin),
    )
    for rows in _row_counts(elements, num_threads):
        for name, run in runs:
            yield Case(
                op=name,
                shape=f"{rows} x {elements}",
                samples=((rows, elements),),
                run=run,
            )


def activations_agree(
    kernels: Kernels, elements: int, generator: torch.Generator, dtype: torch.dtype
) -> Agreement:
    """Hold activations over rows of this many elements against themselves in stacks."""
    return all_of(
        stack_against_alone(case, generator, _STACKS, dtype)
        for case in activation_cases(kernels, elements, torch.get_num_threads())
    )


def least_multiple(kernels: Kernels, generator: torch.Generator, dtype: torch.dtype) -> int:
    """Return the least candidate whose own multiples all agree, NEVER when none is found."""
    for candidate in _candidates(torch.get_num_threads()):
        if all(
            stack_against_alone(case, generator, _STACKS, dtype).equal
            for factor in (1, 3, 5)
            for case in activation_cases(kernels, factor * candidate, torch.get_num_threads())
        ):
            return candidate
    return NEVER


def _candidates(num_threads: int) -> list[int]:
    """Vectors are powers of two; parts are equal where the count divides by that of threads."""
    parts = {math.lcm(*range(1, used + 1)) for used in range(1, num_threads + 1)}
    found = {2**power * count for power in range(9) for count in parts}
    return sorted(count for count in found if count <= _LARGEST_MULTIPLE)


def _row_counts(elements: int, num_threads: int) -> tuple[int, ...]:
    """Odd counts: a few rows, and for each number of threads what makes a stack of 3 use it."""
    few = {1, 7}
    for threads in range(2, num_threads + 2):
        few.add(int((threads - 0.5) * _GRAIN / (3 * elements)) | 1)
    return tuple(sorted(few))
