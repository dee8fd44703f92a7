"""The operations whose verdict is yes or no, each at several shapes of one sample."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ostinato.backend.batch_rules._kernels import Kernel, Kernels
from ostinato.backend.batch_rules._measure import Case


class Attention(NamedTuple):
    """Sizes of one sample."""

    queries: int
    keys: int
    heads: int
    head_dim: int

    def describe(self) -> str:
        """Say it in words."""
        return f"{self.queries} on {self.keys} tokens, {self.heads} heads of {self.head_dim}"

    def samples(self) -> tuple[tuple[int, int, int], ...]:
        """Return the shapes [L, N, D] of query, key and value."""
        keys = (self.keys, self.heads, self.head_dim)
        return (self.queries, self.heads, self.head_dim), keys, keys


class Conv(NamedTuple):
    """Channels, and the length of each side of the sample and of the window."""

    channels_in: int
    channels_out: int
    side: int
    window: int


# torch's kernel for CPUs takes query tokens in blocks of 32, from 192 of them on of 64 and from 768
# on of 256, and keys in blocks of 512 (FlashAttentionKernel.cpp): sizes on both sides.
ATTENTIONS = (
    Attention(5, 5, 2, 16),
    Attention(33, 33, 4, 32),
    Attention(70, 13, 4, 64),
    Attention(200, 200, 2, 48),
)
LONG_ATTENTION = Attention(800, 530, 1, 16)
NORMS = ((1, 32), (1, 100), (5, 384), (40, 1536))  # rows, width
GROUPS = ((32, 8, 7), (64, 32, 16))  # channels, groups, height and width
CONVS_2D = (Conv(3, 16, 8, 3), Conv(16, 32, 9, 3), Conv(64, 64, 8, 3), Conv(96, 96, 8, 3))
CONVS_3D = (Conv(3, 16, 8, 3), Conv(16, 32, 8, 3), Conv(32, 32, 6, 3))
CONVS_1D = (Conv(16, 32, 40, 3), Conv(64, 64, 100, 3))
PATCHES = (Conv(4, 64, 8, 2), Conv(16, 128, 8, 2))
_FRAMES = 3


def attention_cases(kernels: Kernels, sizes: tuple[Attention, ...] = ATTENTIONS) -> Iterator[Case]:
    """Yield dot-product attention: plain, with keys masked out, with a bias on the scores."""
    for size in sizes:
        scores = (size.heads, size.queries, size.keys)
        for name, run, more in (
            ("attention", attend, ()),
            ("attention, masked", _attend_masked, ((1, 1, size.keys),)),
            ("attention, biased", attend, (scores,)),
        ):
            yield Case(
                op=name,
                shape=size.describe(),
                samples=(*size.samples(), *more),
                run=partial(run, kernels.attention),
            )


def attend_case(kernels: Kernels, size: Attention) -> Case:
    """Return plain dot-product attention at one size."""
    return next(attention_cases(kernels, (size,)))


def matmul_attention_cases(sizes: tuple[Attention, ...] = ATTENTIONS) -> Iterator[Case]:
    """Yield attention by two matrix products and a softmax, as T5 encoders compute it."""
    for size in sizes:
        yield Case(
            op="attention by products",
            shape=size.describe(),
            samples=size.samples(),
            run=partial(attend, _products),
        )


def draw_attention(
    size: Attention, generator: torch.Generator, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw query [1, L, N, D] and key and value [1, S, N, D] of one sample."""
    query, key, value = (
        torch.randn(1, *sample, generator=generator).to(dtype) for sample in size.samples()
    )
    return query, key, value


def attend(
    kernel: Kernel,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend over tokens [B, L, N, D], with the heads moved to the front as modules do."""
    heads_first = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return kernel(*heads_first, attn_mask=attn_mask)


def norm_cases(kernels: Kernels) -> Iterator[Case]:
    """Yield layer, RMS and group norm."""
    for rows, width in NORMS:
        yield from row_norm_cases(kernels, rows, width)
    for channels, groups, side in GROUPS:
        yield Case(
            op="group norm",
            shape=f"{channels} channels in {groups}, {side} x {side}",
            samples=((channels, side, side),),
            run=partial(kernels.group_norm, num_groups=groups),
        )


def row_norm_cases(kernels: Kernels, rows: int, width: int) -> Iterator[Case]:
    """Yield the norms of rows: layer and RMS norm."""
    for name, norm in (("layer norm", kernels.layer_norm), ("RMS norm", kernels.rms_norm)):
        yield Case(
            op=name,
            shape=f"{rows} x {width}",
            samples=((rows, width),),
            run=partial(norm, normalized_shape=(width,)),
        )


def conv2d_cases(kernels: Kernels, generator: torch.Generator) -> Iterator[Case]:
    """Yield 3x3 convolutions with a bias, and patches."""
    for conv in CONVS_2D:
        yield _conv("conv2d 3x3", kernels.conv2d, conv, 2, generator)
    for conv in PATCHES:
        yield _conv("conv2d patch", kernels.conv2d, conv, 2, generator)


def conv3d_cases(kernels: Kernels, generator: torch.Generator) -> Iterator[Case]:
    """Yield 3x3x3 convolutions that see no later frame, and patches of one frame."""
    for conv in CONVS_3D:
        yield _conv("conv3d 3x3x3, causal", kernels.conv3d, conv, 3, generator)
    for conv in PATCHES:
        yield _conv("conv3d patch", kernels.conv3d, conv, 3, generator)


def conv1d_cases(kernels: Kernels, generator: torch.Generator) -> Iterator[Case]:
    """Yield convolutions over time."""
    for conv in CONVS_1D:
        yield _conv("conv1d", kernels.conv1d, conv, 1, generator)


def _conv(name: str, kernel: Kernel, conv: Conv, axes: int, generator: torch.Generator) -> Case:
    """Make a convolution of one to three axes; the first of three is time."""
    patch = conv.window == 2
    window = [conv.window] * axes
    side = [conv.side] * axes
    stride = window if patch else [1] * axes
    if axes == 3:
        side[0] = _FRAMES
        if patch:
            window[0] = stride[0] = 1
    fan_in = conv.channels_in * torch.Size(window).numel()
    weight = torch.randn(conv.channels_out, conv.channels_in, *window, generator=generator)
    bias = torch.randn(conv.channels_out, generator=generator)
    # F.pad names the last axis first; time is padded on the side of the past only.
    padding = [] if patch else [1, 1] * axes if axes < 3 else [1, 1, 1, 1, 2, 0]
    sides = " x ".join(str(length) for length in side)
    return Case(
        op=name,
        shape=f"{conv.channels_in} to {conv.channels_out} channels, {sides}",
        samples=((conv.channels_in, *side),),
        run=partial(_convolve, kernel, weight / fan_in**0.5, bias, padding, stride),
    )


def _convolve(
    kernel: Kernel,
    weight: torch.Tensor,
    bias: torch.Tensor,
    padding: list[int],
    stride: list[int],
    sample: torch.Tensor,
) -> torch.Tensor:
    padded = F.pad(sample, padding) if padding else sample
    dtype = sample.dtype
    return kernel(padded, weight.to(dtype), bias.to(dtype), stride=stride)


def _attend_masked(
    kernel: Kernel,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    noise: torch.Tensor,
) -> torch.Tensor:
    seen = noise > -0.84  # four fifths of a standard normal
    seen[..., 0] = True  # where no key is seen, the result is NaN
    return attend(kernel, query, key, value, seen)


def _products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None
) -> torch.Tensor:
    scores = query @ key.transpose(-1, -2)
    if attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(dim=-1) @ value
