"""The training forward: its values, its gradients and its masks."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from ostinato.backend.nets.dense_wan import block_causal_mask, dense_block, dense_forward
from ostinato.backend.nets.norm_rotate import norm_rotate, widen
from ostinato.backend.nets.rotary import rotary_tables, rotate

FRAMES = 4


def _inputs():
    generator = torch.Generator().manual_seed(5)
    latents = torch.randn(2, 4, FRAMES, 8, 12, generator=generator)
    timesteps = torch.rand(2, FRAMES, generator=generator) * 1000
    return latents, timesteps, torch.randn(2, 16, 32, generator=generator)


def _dense(wan: WanTransformer3DModel, mask: torch.Tensor | None = None, **options):
    full = torch.ones(FRAMES, FRAMES, dtype=torch.bool)
    latents, timesteps, prompt_embeds = _inputs()
    return dense_forward(
        wan,
        latents,
        timesteps,
        prompt_embeds,
        torch.arange(FRAMES),
        full if mask is None else mask,
        **options,
    )


def _gradients(wan: WanTransformer3DModel, velocity: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    target = torch.randn(velocity.shape, generator=generator)
    names, parameters = zip(*wan.named_parameters(), strict=True)
    loss = (velocity.float() - target).square().mean()
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def _stock(wan: WanTransformer3DModel) -> torch.Tensor:
    latents, timesteps, prompt_embeds = _inputs()
    return wan(latents, timesteps.repeat_interleave(24, 1), prompt_embeds, return_dict=False)[0]


@pytest.mark.parametrize("attention", ["sdpa", "matmul"])
@pytest.mark.parametrize("config", [{}, {"cross_attn_norm": False}])
def test_values_and_gradients_equal_the_library_under_a_full_mask(make_wan, attention, config):
    wan = make_wan(**config)
    stock, dense = _stock(wan), _dense(wan, attention=attention)
    # Measured 6e-7: other order of the same sums.
    torch.testing.assert_close(dense, stock, rtol=0, atol=5e-6)
    expected, gradients = _gradients(wan, stock), _gradients(wan, dense)
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("attention", ["sdpa", "matmul"])
def test_bfloat16_autocast_follows_float32(wan, attention) -> None:
    mask = block_causal_mask(FRAMES, 2)
    exact = _dense(wan, mask, attention=attention)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = _dense(wan, mask, attention=attention)
    error = (rounded.float() - exact).square().mean() / exact.square().mean()
    assert error < 1e-3  # measured 4e-5
    expected, gradients = _gradients(wan, exact), _gradients(wan, rounded)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32, name
    cosine = nn.functional.cosine_similarity(_flat(gradients), _flat(expected), dim=0)
    assert cosine > 0.999


def _flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


@torch.no_grad()
def test_a_mask_of_frames_is_a_mask_of_tokens(wan) -> None:
    mask = block_causal_mask(FRAMES, 2)
    tokens = mask.repeat_interleave(24, 0).repeat_interleave(24, 1)
    assert torch.equal(_dense(wan, mask), _dense(wan, tokens))


def test_the_mask_shows_own_block_and_the_window_before_it() -> None:
    assert block_causal_mask(4, 2).tolist() == [
        [True, True, False, False],
        [True, True, False, False],
        [True, True, True, True],
        [True, True, True, True],
    ]
    windowed = block_causal_mask(6, 2, window_blocks=2)
    assert windowed[5].tolist() == [False, False, True, True, True, True]
    assert windowed[0].tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("rotated", [True, False])
def test_norm_and_rotation_have_the_gradient_of_their_parts(rotated: bool) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2, 8, 24, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(24, dtype=torch.float64, requires_grad=True)
    tables = rotary_tables(torch.arange(2), rows=2, columns=2, head_dim=12)
    rotary = widen(tables, num_heads=2, dtype=torch.float64) if rotated else None
    upstream = torch.randn(2, 8, 24, dtype=torch.float64)

    fused = norm_rotate(hidden, weight, 1e-6, rotary)
    plain = nn.functional.rms_norm(hidden, (24,), weight, 1e-6)
    if rotated:
        cos, sin = tables.cos.double(), tables.sin.double()
        plain = rotate(plain.unflatten(2, (2, 12)), cos, sin).flatten(2)
    torch.testing.assert_close(fused, plain)
    gradients = torch.autograd.grad(fused, (hidden, weight), upstream)
    expected = torch.autograd.grad(plain, (hidden, weight), upstream)
    torch.testing.assert_close(gradients, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler trips over warnings of its own
def test_a_compiled_block_is_one_graph_for_all_layers(wan) -> None:
    mask = block_causal_mask(FRAMES, 2)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(dense_block, backend=counter, fullgraph=True, dynamic=False)
    plain, traced = _dense(wan, mask), _dense(wan, mask, block_forward=compiled)
    assert counter.frame_count == 1
    torch.testing.assert_close(traced, plain, rtol=0, atol=5e-6)
    expected = _gradients(wan, plain)
    for name, gradient in _gradients(wan, traced).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6, msg=name)
