"""The quick probe: run before the first stack, at the thread count that the stack will have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ostinato.backend.batch_rules._activations import activations, common_multiple, least_multiple
from ostinato.backend.batch_rules._cases import (
    LONG_ATTENTION,
    attend_case,
    attention_cases,
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
from ostinato.backend.batch_rules._measure import NEVER, Case, stack_against_alone
from ostinato.backend.batch_rules._rules import BatchRules
from ostinato.backend.batch_rules._shapes import Trials

SEED = 20260727
_DTYPE = torch.float32
_STACKS = (2, 3, 8, 16)
_LONG_STACKS = (2, 5)


def probe_batch_rules(kernels: Kernels | None = None) -> BatchRules:
    """Measure the rules on this processor, at its current thread count; takes under a second.

    kernels: what is probed, by default the functions of torch. Draws from a generator of its own,
    so it changes no random state. The rules that it returns try a model's own shapes with the same
    kernels, at the first stack of each.
    """
    probed = Kernels() if kernels is None else kernels
    generator = torch.Generator().manual_seed(SEED)

    def agree(cases: Iterable[Case], stacks: Sequence[int] = _STACKS) -> bool:
        return all(stack_against_alone(case, generator, stacks, _DTYPE).equal for case in cases)

    with torch.no_grad():
        return BatchRules(
            linear_rows=_linear_rows(probed, generator),
            activation_multiple=common_multiple(
                least_multiple(activation, generator, _DTYPE).elements
                for activation in activations(probed)
            ),
            attention=agree(attention_cases(probed))
            and agree((attend_case(probed, LONG_ATTENTION),), _LONG_STACKS),
            norms=agree(norm_cases(probed)),
            trials=Trials(probed),
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
