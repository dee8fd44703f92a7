"""Convolutions of the float64 reference, as a matrix product over every window."""
# B batch, C channel, O output channel, T frame, H W pixel

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ostinato.backend.reference.arrays import Affine, Array


def convolve(x: Array, parameters: Affine, strides: tuple[int, ...]) -> Array:
    """Cross-correlate without padding: x [B,C,...], weight [O,C,...] to [B,O,...].

    y[b,o,p] = b[o] + sum over c, k of w[o,c,k] x[b,c,p stride + k]: what the field calls a
    convolution (https://arxiv.org/abs/1603.07285, section 2). One stride for each spatial axis.
    """
    weight, axes = parameters.weight, tuple(range(2, x.ndim))
    windows = sliding_window_view(x, weight.shape[2:], axis=axes)  # type: ignore[call-overload]
    windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in strides))]
    kernel_axes = tuple(range(x.ndim, windows.ndim))
    product = np.tensordot(windows, weight, ((1, *kernel_axes), (1, *axes)))
    if parameters.bias is not None:
        product = product + parameters.bias
    return np.moveaxis(product, -1, 1)


def conv2d(x_BCHW: Array, parameters: Affine, *, padding: int) -> Array:
    """Convolve images [B,C,H,W] with stride one and a border of zeros; returns [B,O,H,W]."""
    border = (padding, padding)
    return convolve(np.pad(x_BCHW, ((0, 0), (0, 0), border, border)), parameters, (1, 1))


def causal_conv3d(x_BCTHW: Array, parameters: Affine, history_BCTHW: Array | None) -> Array:
    """Convolve frames [B,C,T,H,W] so that each sees itself and earlier ones; returns [B,O,T,H,W].

    A kernel of k frames reads k - 1 frames before the first: the last of `history_BCTHW`, zeros
    where it is shorter or None. Odd kernels of height and width keep the size by a border of zeros.
    """
    frames, height, width = parameters.weight.shape[2:]
    before = x_BCTHW[:, :, :0] if history_BCTHW is None else history_BCTHW
    before = before[:, :, max(0, before.shape[2] - (frames - 1)) :]
    missing = frames - 1 - before.shape[2]
    joined = np.concatenate((before, x_BCTHW), axis=2)
    borders = ((missing, 0), (height // 2, height // 2), (width // 2, width // 2))
    return convolve(np.pad(joined, ((0, 0), (0, 0), *borders)), parameters, (1, 1, 1))


def patch_embed(x_BCTHW: Array, parameters: Affine) -> Array:
    """Map each patch of the weight's size [O,C,t,h,w] to O channels; patches do not overlap.

    Source: https://arxiv.org/abs/2010.11929, section 3.1.
    """
    return convolve(x_BCTHW, parameters, parameters.weight.shape[2:])
