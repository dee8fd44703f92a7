"""The quick probe: run before the first stack, at the thread count that the stack will have."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ostinato.backend.batch_rules._activations import least_multiple
from ostinato.backend.batch_rules._cases import (
    attention_cases,
    conv2d_cases,
    conv3d_cases,
    norm_cases,
)
from ostinato.backend.batch_rules._kernels import Kernels
from ostinato.backend.batch_rules._linear import QUICK_SHAPES, least_rows, rows_that_differ
from ostinato.backend.batch_rules._measure import Case, stack_against_alone
from ostinato.backend.batch_rules._rules import BatchRules

_SEED = 20260727
_STACKS = (2, 3, 8, 16)


def probe_batch_rules(kernels: Kernels | None = None) -> BatchRules:
    """Measure the rules on this processor, at its current thread count; takes under a second.

    kernels: what is probed, by default the functions of torch. Draws from a generator of its own,
    so it changes no random state.
    """
    probed = Kernels() if kernels is None else kernels
    generator = torch.Generator().manual_seed(_SEED)

    def agree(cases: Iterable[Case]) -> bool:
        return all(
            stack_against_alone(case, generator, _STACKS, torch.float32).equal for case in cases
        )

    with torch.no_grad():
        return BatchRules(
            linear_rows=max(
                least_rows(tuple(rows_that_differ(probed.linear, shape, generator, torch.float32)))
                for shape in QUICK_SHAPES
            ),
            activation_multiple=least_multiple(probed, generator, torch.float32),
            attention=agree(attention_cases(probed)),
            norms=agree(norm_cases(probed)),
            conv2d=agree(conv2d_cases(probed, generator)),
            conv3d=agree(conv3d_cases(probed, generator)),
        )
