"""The thorough probe: every operation at more shapes, in a named dtype, as a table.

It repeats what the quick probe decides by, at the sizes of large models too, and looks at what
changes bits beside the batch: where weights lie, the order of keys, keys that are padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from ostinato.backend.alignment import align_tensor
from ostinato.backend.batch_rules._activations import activations, least_multiple
from ostinato.backend.batch_rules._cases import (
    ATTENTIONS,
    LONG_ATTENTION,
    Attention,
    attend,
    attention_cases,
    conv1d_cases,
    conv2d_cases,
    conv3d_cases,
    draw_attention,
    matmul_attention_cases,
    norm_cases,
)
from ostinato.backend.batch_rules._kernels import Kernel, Kernels
from ostinato.backend.batch_rules._linear import (
    QUICK_LONG,
    QUICK_SHAPES,
    LinearShape,
    least_rows,
    long_case,
    rows_that_differ,
)
from ostinato.backend.batch_rules._measure import (
    NEVER,
    Agreement,
    Case,
    all_of,
    compare,
    stack_against_alone,
)
from ostinato.backend.batch_rules._probe import SEED

_STACKS = (2, 3, 8, 16)
_LONG_STACKS = (2, 4)
# Wan 2.1: widths 1536 and 5120, feed-forwards of 8960 and 13824, text of 4096.
_SHAPES = (
    *QUICK_SHAPES,
    LinearShape(16, 37, True),
    LinearShape(512, 2, False),
    LinearShape(256, 1536, True),
    LinearShape(384, 1152, False),
    LinearShape(512, 2048, True),
    LinearShape(1536, 1536, True),
    LinearShape(4096, 128, True),
    LinearShape(8960, 64, True),
)
# Outside what the rule speaks of: one output, and rows that start at odd places.
_BEYOND = (
    ("linear, one output", LinearShape(128, 1, True)),
    ("linear, one output", LinearShape(1024, 1, False)),
    ("linear, odd width", LinearShape(33, 8, True)),
    ("linear, odd width", LinearShape(100, 100, False)),
)
_LONG = (
    *QUICK_LONG,
    (1560, LinearShape(384, 1536, True)),
    (300, LinearShape(5120, 64, True)),
    (300, LinearShape(8960, 128, True)),
)
_ATTENTIONS = (*ATTENTIONS, LONG_ATTENTION, Attention(800, 512, 2, 128))
_OFFSET_SHAPES = tuple(
    (rows, LinearShape(width, out_features, False))
    for width, out_features in ((64, 64), (384, 384), (1536, 96))
    for rows in (1, 7, 64)
)
_OFFSETS = (1, 2, 5, 8, 15)  # elements; safetensors puts data at any multiple of their size
_PADDED = (Attention(33, 13, 4, 32), Attention(64, 100, 4, 64), Attention(200, 400, 2, 48))
_PADDING = 28  # keys added


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One operation at one shape.

    needs: the least rows of a linear, or multiple of elements of an activation, from which calls
    agree; 1 where they agree as they are, NEVER where nothing that was tried does.
    largest_difference: over all that was tried, so also below `needs`.
    """

    op: str
    shape: str
    needs: int
    largest_difference: float

    @property
    def equal(self) -> bool:
        """Whether calls agree with no condition."""
        return self.needs == 1


def probe_thoroughly(dtype: torch.dtype, kernels: Kernels | None = None) -> tuple[Finding, ...]:
    """Measure every operation in `dtype` at the current thread count; takes some seconds."""
    probed = Kernels() if kernels is None else kernels
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        return (
            *_linears(probed, generator, dtype),
            *_activations(probed, generator, dtype),
            *_yes_or_no(probed, generator, dtype),
            *_beside_the_batch(probed, generator, dtype),
        )


def _linears(kernels: Kernels, generator: torch.Generator, dtype: torch.dtype) -> Iterator[Finding]:
    for op, shape in (*(("linear", shape) for shape in _SHAPES), *_BEYOND):
        differing = rows_that_differ(kernels.linear, shape, generator, dtype)
        yield Finding(
            op=op,
            shape=shape.describe(),
            needs=least_rows(differing),
            largest_difference=all_of(differing.values()).largest_difference,
        )
    for rows, shape in _LONG:
        case = long_case(kernels.linear, rows, shape, generator, dtype)
        yield _of(case, stack_against_alone(case, generator, _LONG_STACKS, dtype))


def _activations(
    kernels: Kernels, generator: torch.Generator, dtype: torch.dtype
) -> Iterator[Finding]:
    for activation in activations(kernels):
        multiple = least_multiple(activation, generator, dtype)
        yield Finding(
            op="activation",
            shape=activation.name,
            needs=multiple.elements,
            largest_difference=multiple.below.largest_difference,
        )


def _yes_or_no(
    kernels: Kernels, generator: torch.Generator, dtype: torch.dtype
) -> Iterator[Finding]:
    for case in (
        *attention_cases(kernels, _ATTENTIONS),
        *matmul_attention_cases(),
        *norm_cases(kernels),
        *conv2d_cases(kernels, generator),
        *conv3d_cases(kernels, generator),
        *conv1d_cases(kernels, generator),
    ):
        yield _of(case, stack_against_alone(case, generator, _STACKS, dtype))


def _beside_the_batch(
    kernels: Kernels, generator: torch.Generator, dtype: torch.dtype
) -> Iterator[Finding]:
    for size in _PADDED:
        query, key, value = draw_attention(size, generator, dtype)
        plain = attend(kernels.attention, query, key, value)
        yield _finding(
            "inputs at odd offsets",
            f"attention, {size.describe()}",
            _misplaced(partial(attend, kernels.attention), (query, key, value)),
        )
        order = torch.randperm(size.keys, generator=generator)
        moved = attend(kernels.attention, query, key[:, order], value[:, order])
        yield _finding("keys in another order", size.describe(), compare(moved, plain))
        padding = (0, 0, 0, 0, 0, _PADDING)
        seen = F.pad(torch.ones(1, 1, 1, size.keys, dtype=torch.bool), (0, _PADDING))
        padded = attend(kernels.attention, query, F.pad(key, padding), F.pad(value, padding), seen)
        yield _finding("keys padded and masked", size.describe(), compare(padded, plain))
    for rows, shape in _OFFSET_SHAPES:
        hidden_states = torch.randn(rows, shape.in_features, generator=generator).to(dtype)
        weight = torch.randn(shape.out_features, shape.in_features, generator=generator).to(dtype)
        words = f"{rows} x {shape.describe()}"
        run = partial(kernels.linear, hidden_states)
        yield _finding("weights at odd offsets", words, _misplaced(run, (weight,)))
        run = partial(kernels.linear, weight=weight)
        yield _finding(
            "inputs at odd offsets", f"linear, {words}", _misplaced(run, (hidden_states,))
        )


def _misplaced(run: Kernel, tensors: tuple[torch.Tensor, ...]) -> Agreement:
    """Hold a call on tensors at 64-byte boundaries against the same values beside them."""
    expected = run(*(align_tensor(tensor) for tensor in tensors))
    return all_of(
        compare(run(*(_at_offset(tensor, offset) for tensor in tensors)), expected)
        for offset in _OFFSETS
    )


def _at_offset(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Copy to a place `offset` elements behind a 64-byte boundary."""
    room = align_tensor(torch.empty(tensor.numel() + offset, dtype=tensor.dtype))
    return room[offset:].view(tensor.shape).copy_(tensor)


def _of(case: Case, agreement: Agreement) -> Finding:
    return _finding(case.op, case.shape, agreement)


def _finding(op: str, shape: str, agreement: Agreement) -> Finding:
    return Finding(
        op=op,
        shape=shape,
        needs=1 if agreement.equal else NEVER,
        largest_difference=agreement.largest_difference,
    )
