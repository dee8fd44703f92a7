"""Operations of the float64 reference: pure numpy, written from their formulas.

They say what the networks compute when nothing is rounded to less than float64; they share no code
with the served path, so a fault of one is not repeated by the other.
"""
# B batch, L token, N head, E head width, D width, R row

from __future__ import annotations

import math

import numpy as np

from ostinato.backend.reference.arrays import Affine, Array

# The longest period of sinusoidal embeddings: https://arxiv.org/abs/1706.03762, section 3.5.
MAX_PERIOD = 10000.0
# The cubic term of the tanh form of GELU: https://arxiv.org/abs/1606.08415, section 2.
_GELU_CUBIC = 0.044715


def linear(x: Array, parameters: Affine) -> Array:
    """Map [..., D_in] to [..., D_out] with a weight [D_out, D_in]: x W^T + b."""
    product = x @ parameters.weight.T
    return product if parameters.bias is None else product + parameters.bias


def layer_norm(x: Array, eps: float, parameters: Affine | None = None) -> Array:
    """Normalise the last axis: (x - mean) / sqrt(var + eps), then scale and shift [D].

    Source: https://arxiv.org/abs/1607.06450, with the biased variance.
    """
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    if parameters is None:
        return normed
    scaled = normed * parameters.weight
    return scaled if parameters.bias is None else scaled + parameters.bias


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Normalise the last axis by its root mean square: w x / sqrt(mean(x^2) + eps).

    Source: https://arxiv.org/abs/1910.07467.
    """
    return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e^-x) with full relative precision on both sides, and no overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def silu(x: Array) -> Array:
    """Return x sigmoid(x): https://arxiv.org/abs/1702.03118."""
    return x * sigmoid(x)


def gelu_tanh(x: Array) -> Array:
    """Return the tanh form of GELU: x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + c x^3).

    Source: https://arxiv.org/abs/1606.08415, section 2. Written as x sigmoid(2 u), which is the
    same function, and loses no digits where tanh u is near -1.
    """
    return x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + _GELU_CUBIC * x**3))


def softmax(scores: Array) -> Array:
    """Normalise the last axis to sum to one; an entry of -inf gets exactly nothing."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(
    query: Array, key: Array, value: Array, *, scale: float, bias: Array | None = None
) -> Array:
    """Return softmax(scale Q K^T + bias) V, [B,Lq,N,E].

    query: [B,Lq,N,E]. key, value: [B,Lk,N,E]. bias: broadcast to [B,N,Lq,Lk]; -inf where a query
    may not look. Source: https://arxiv.org/abs/1706.03762, section 3.2.1.
    """
    query_BNLE, value_BNLE = (np.swapaxes(x, 1, 2) for x in (query, value))
    scores_BNLL = scale * (query_BNLE @ np.transpose(key, (0, 2, 3, 1)))
    if bias is not None:
        scores_BNLL = scores_BNLL + bias
    return np.swapaxes(softmax(scores_BNLL) @ value_BNLE, 1, 2)


def timestep_embedding(timesteps: Array, dim: int) -> Array:
    """Embed timesteps [R] as [R,dim]: cosines, then sines, of t / 10000^(2 i / dim).

    Source: https://arxiv.org/abs/1706.03762, section 3.5, in the order in which Wan asks diffusers'
    `Timesteps` for it (cosines first, no shift of the frequencies). `dim` is even.
    """
    assert dim % 2 == 0, dim
    frequencies = MAX_PERIOD ** -(np.arange(dim // 2, dtype=np.float64) / (dim // 2))
    angles = timesteps[:, None] * frequencies
    return np.concatenate((np.cos(angles), np.sin(angles)), axis=-1)


def split_heads(x: Array, num_heads: int) -> Array:
    """View [B,L,N E] as [B,L,N,E]."""
    return x.reshape(*x.shape[:2], num_heads, -1)


def join_heads(x: Array) -> Array:
    """View [B,L,N,E] as [B,L,N E]."""
    return x.reshape(*x.shape[:2], -1)
