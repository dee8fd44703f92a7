"""The float64 operations: against torch in float64, and against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers.models.embeddings import Timesteps

from ostinato.backend.reference.arrays import Affine, Array
from ostinato.backend.reference.convolution import causal_conv3d, conv2d, convolve, patch_embed
from ostinato.backend.reference.ops import (
    attention,
    gelu_tanh,
    layer_norm,
    linear,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    timestep_embedding,
)

Normal = Callable[..., Array]
t = torch.from_numpy


def assert_close(found: Array, expected: torch.Tensor | list[float], atol: float = 1e-13) -> None:
    """Equal to 1e-12 relative, which float64 leaves after sums of a few hundred terms."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12, atol=atol)


def test_linear(normal: Normal) -> None:
    x, weight, bias = normal(2, 5, 8), normal(6, 8), normal(6)
    assert_close(linear(x, Affine(weight, bias)), F.linear(t(x), t(weight), t(bias)))
    assert_close(linear(x, Affine(weight, None)), F.linear(t(x), t(weight)))


def test_layer_norm(normal: Normal) -> None:
    x, weight, bias = 3.0 + normal(2, 5, 8), normal(8), normal(8)
    scaled = F.layer_norm(t(x), (8,), t(weight), t(bias), eps=1e-3)
    assert_close(layer_norm(x, 1e-3, Affine(weight, bias)), scaled)
    assert_close(layer_norm(x, 1e-3), F.layer_norm(t(x), (8,), eps=1e-3))
    unshifted = F.layer_norm(t(x), (8,), t(weight), eps=1e-3)
    assert_close(layer_norm(x, 1e-3, Affine(weight, None)), unshifted)
    # Mean 2, biased variance 1.
    assert_close(layer_norm(np.array([1.0, 3.0]), 0.0), [-1.0, 1.0])


def test_rms_norm(normal: Normal) -> None:
    x, weight = normal(2, 5, 8), normal(8)
    assert_close(rms_norm(x, weight, 1e-3), F.rms_norm(t(x), (8,), t(weight), 1e-3))
    # The root mean square of 1 and 7 is 5.
    assert_close(rms_norm(np.array([1.0, 7.0]), np.array([1.0, 10.0]), 0.0), [0.2, 14.0])


def test_activations(normal: Normal) -> None:
    x = 4.0 * normal(200)
    assert_close(silu(x), F.silu(t(x)))
    assert_close(gelu_tanh(x), F.gelu(t(x), approximate="tanh"), atol=1e-15)
    assert_close(silu(np.array([math.log(3.0)])), [0.75 * math.log(3.0)])


def test_activations_keep_their_digits_far_out() -> None:
    """Where 1 + tanh cancels, torch's form has no digit left."""
    assert_close(sigmoid(np.array([-800.0, 0.0, 800.0])), [0.0, 0.5, 1.0], atol=0.0)
    u = math.sqrt(2.0 / math.pi) * (-6.0 + 0.044715 * -216.0)
    expected = -6.0 * math.exp(2.0 * u) / (1.0 + math.exp(2.0 * u))
    assert_close(gelu_tanh(np.array([-6.0])), [expected], atol=0.0)
    assert_close(silu(np.array([-40.0])), [-40.0 * math.exp(-40.0)], atol=0.0)


def test_softmax(normal: Normal) -> None:
    x = 1000.0 + 5.0 * normal(3, 7)
    assert_close(softmax(x), torch.softmax(t(x), -1))
    assert_close(softmax(np.array([0.0, math.log(3.0), -np.inf])), [0.25, 0.75, 0.0])


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_attention(normal: Normal, scale: float) -> None:
    query, key, value, bias = normal(2, 5, 3, 4), normal(2, 7, 3, 4), normal(2, 7, 3, 4), normal(1)
    bias = np.broadcast_to(bias, (1, 3, 5, 7)) * normal(1, 3, 5, 7)
    bias = np.where(np.arange(7) < 6, bias, -np.inf)

    def library(mask: torch.Tensor | None) -> torch.Tensor:
        heads = (t(x).transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale).transpose(1, 2)

    assert_close(attention(query, key, value, scale=scale), library(None))
    biased = attention(query, key, value, scale=scale, bias=bias)
    assert_close(biased, library(t(bias)))
    moved = value + 100.0 * (np.arange(7) == 6)[:, None, None]
    np.testing.assert_array_equal(
        attention(query, key, moved, scale=scale, bias=bias), biased, "a masked key was seen"
    )


def test_attention_by_hand() -> None:
    """Scores 0 and log 3 weigh the two values 1 : 3."""
    query = np.array([2.0]).reshape(1, 1, 1, 1)
    key = np.array([0.0, math.log(3.0)]).reshape(1, 2, 1, 1)
    value = np.array([4.0, 8.0]).reshape(1, 2, 1, 1)
    assert attention(query, key, value, scale=0.5).item() == pytest.approx(7.0, rel=1e-15)


def test_timestep_embedding() -> None:
    timesteps = np.array([0.0, 1.0, 937.5])
    found = timestep_embedding(timesteps, 4)
    expected = [[math.cos(x), math.cos(x / 100), math.sin(x), math.sin(x / 100)] for x in timesteps]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    library = Timesteps(num_channels=64, flip_sin_to_cos=True, downscale_freq_shift=0)
    # The library's angles are float32: at 937.5 they are off by up to 3e-5.
    rounded = library(torch.from_numpy(timesteps))
    np.testing.assert_allclose(timestep_embedding(timesteps, 64), rounded, atol=2e-4)


@pytest.mark.parametrize(("kernel", "strides"), [((3, 3), (1, 1)), ((2, 1), (2, 3))])
def test_convolve(normal: Normal, kernel: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x, weight, bias = normal(2, 3, 7, 8), normal(5, 3, *kernel), normal(5)
    expected = F.conv2d(t(x), t(weight), t(bias), stride=strides)
    assert_close(convolve(x, Affine(weight, bias), strides), expected)
    assert_close(
        convolve(x, Affine(weight, None), strides), F.conv2d(t(x), t(weight), stride=strides)
    )


def test_convolution_by_hand() -> None:
    """A correlation, not a mirrored one: the weight's first entry meets the first input."""
    x, weight = np.array([1.0, 2.0, 4.0]), np.array([10.0, 1.0])
    found = convolve(x.reshape(1, 1, 3), Affine(weight.reshape(1, 1, 2), np.array([0.5])), (1,))
    assert_close(found.ravel(), [12.5, 24.5])


def test_conv2d_and_patches(normal: Normal) -> None:
    x, weight, bias = normal(2, 3, 6, 8), normal(5, 3, 3, 3), normal(5)
    expected = F.conv2d(t(x), t(weight), t(bias), padding=1)
    assert_close(conv2d(x, Affine(weight, bias), padding=1), expected)
    video, patch = normal(1, 3, 2, 6, 8), normal(5, 3, 1, 2, 2)
    expected = F.conv3d(t(video), t(patch), t(bias), stride=(1, 2, 2))
    assert_close(patch_embed(video, Affine(patch, bias)), expected)


@pytest.mark.parametrize("seen", [0, 1, 2, 5])
def test_causal_conv3d_reads_its_history(normal: Normal, seen: int) -> None:
    """Frames after a history are those of the whole clip, of which zeros stand before the first."""
    clip, weights = normal(1, 3, 7, 4, 5), Affine(normal(5, 3, 3, 3, 3), normal(5))
    whole = F.pad(t(clip), (1, 1, 1, 1, 2, 0))
    expected = F.conv3d(whole, t(weights.weight), t(weights.bias))[:, :, seen:]
    history = clip[:, :, :seen] if seen else None
    assert_close(causal_conv3d(clip[:, :, seen:], weights, history), expected)
