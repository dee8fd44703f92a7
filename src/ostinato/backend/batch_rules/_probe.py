"""The quick probe: run before the first stack, at the thread count that the stack will have."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ostinato.backend.batch_rules._activations import activations, common_multiple, least_multiple
from ostinato.backend.batch_rules._cases import (
    attention_cases,
    conv2d_cases,
    conv3d_cases,
    norm_cases,
)
from ostinato.backend.batch_rules._kernels import Kernels
from ostinato.backend.batch_rules._linear import (
    QUICK_LONG,
    QUICK_SHAPES,
    least_rows,
    long_case,
    rows_that_differ,
)
from ostinato.backend.batch_rules._measure import Case, stack_against_alone
from ostinato.backend.batch_rules._rules import NEVER, BatchRules

SEED = 20260727
_DTYPE = torch.float32
_STACKS = (2, 3, 8, 16)
_LONG_STACKS = (2, 5)


def probe_batch_rules(kernels: Kernels | None = None) -> BatchRules:
    """Measure the rules on this processor, at its current thread count; takes under a second.

    kernels: what is probed, by default the functions of torch. Draws from a generator of its own,
    so it changes no random state.
    """
    probed = Kernels() if kernels is None else kernels
    generator = torch.Generator().manual_seed(SEED)

    def agree(cases: Iterable[Case]) -> bool:
        return all(stack_against_alone(case, generator, _STACKS, _DTYPE).equal for case in cases)

    with torch.no_grad():
        return BatchRules(
            linear_rows=_linear_rows(probed, generator),
            activation_multiple=common_multiple(
                least_multiple(activation, generator, _DTYPE).elements
                for activation in activations(probed)
            ),
            attention=agree(attention_cases(probed)),
            norms=agree(norm_cases(probed)),
            conv2d=agree(conv2d_cases(probed, generator)),
            conv3d=agree(conv3d_cases(probed, generator)),
        )


def _linear_rows(kernels: Kernels, generator: torch.Generator) -> int:
    for rows, shape in QUICK_LONG:
        case = long_case(kernels.linear, rows, shape, generator, _DTYPE)
        if not stack_against_alone(case, generator, _LONG_STACKS, _DTYPE).equal:
            return NEVER
    return max(
        least_rows(rows_that_differ(kernels.linear, shape, generator, _DTYPE))
        for shape in QUICK_SHAPES
    )
