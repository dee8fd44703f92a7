"""Stacked samples of the library's Wan keep the bits of their forwards alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from ostinato.backend.alignment import align_parameters
from ostinato.backend.batch_rules import BatchRules, Kernels, Trials, probe_batch_rules
from ostinato.backend.nets.wan_stack import WanSample, can_stack, stacked_forward


@pytest.fixture(scope="module")
def rules() -> BatchRules:
    return probe_batch_rules()


@pytest.fixture(scope="module", params=[(2, 2, 64), (8, 4, 512)], ids=["w64", "w256"])
def wan(request: pytest.FixtureRequest) -> WanTransformer3DModel:
    heads, layers, ffn_dim = request.param
    torch.manual_seed(3)
    transformer = WanTransformer3DModel(
        num_attention_heads=heads,
        attention_head_dim=32,
        text_dim=32,
        freq_dim=64,
        ffn_dim=ffn_dim,
        num_layers=layers,
        rope_max_seq_len=32,
        cross_attn_norm=True,
    ).eval()
    align_parameters(transformer)
    return transformer.requires_grad_(False)


def samples(count: int, frames: int = 2, size: int = 8) -> list[WanSample]:
    generator = torch.Generator().manual_seed(count)
    return [
        WanSample(
            torch.randn(1, 16, frames, size, size, generator=generator),
            torch.rand(1, generator=generator) * 1000,
            torch.randn(1, 24, 32, generator=generator),
        )
        for _ in range(count)
    ]


def alone(wan: WanTransformer3DModel, sample: WanSample) -> torch.Tensor:
    return wan(*sample, return_dict=False)[0]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16])
@torch.no_grad()
def test_a_stack_of_many_steps_equals_each_alone(
    wan: WanTransformer3DModel, rules: BatchRules, count: int
) -> None:
    stack = samples(count)
    assert can_stack(wan, stack, rules)
    together = stacked_forward(wan, stack)
    assert len(together) == count
    for sample, velocity in zip(stack, together, strict=True):
        assert torch.equal(velocity, alone(wan, sample))


@torch.no_grad()
def test_the_librarys_own_batch_is_not_equal(wan: WanTransformer3DModel) -> None:
    """So the gate is known to bite: this is what serving without care would give."""
    different = 0
    for count in (2, 4, 8, 16):
        stack = samples(count)
        batch = wan(*(torch.cat(part) for part in zip(*stack, strict=True)), return_dict=False)[0]
        different += sum(
            not torch.equal(row, alone(wan, sample)[0])
            for row, sample in zip(batch, stack, strict=True)
        )
    assert different > 0


def test_few_tokens_are_not_stacked(wan: WanTransformer3DModel, rules: BatchRules) -> None:
    few = samples(2, frames=1, size=2)
    assert rules.linear_rows > 1
    assert not can_stack(wan, few, rules)


def test_another_dtype_than_the_rules_speak_of_is_not_stacked(
    wan: WanTransformer3DModel, rules: BatchRules
) -> None:
    sample = samples(2)[0]
    half = WanSample(sample.latents.bfloat16(), sample.timestep, sample.prompt_embeds.bfloat16())
    assert can_stack(wan, [sample] * 2, rules)
    assert not can_stack(wan, [half] * 2, rules)


@pytest.mark.parametrize("bad", ["attention", "linear", "rms_norm", "gelu"])
def test_shapes_of_the_blocks_are_tried(wan: WanTransformer3DModel, bad: str) -> None:
    """Whole blocks run on the stack, so attention's own sizes matter too."""
    plain = probe_batch_rules()
    stack = samples(3)

    def last_bit(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(sample: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            result = kernel(sample, *args, **kwargs)
            return result * (1 + 2e-7) if len(sample) == 3 else result

        return run

    kernels = Kernels()
    broken = dataclasses.replace(kernels, **{bad: last_bit(getattr(kernels, bad))})
    assert can_stack(wan, stack, plain)
    rules = dataclasses.replace(plain, trials=Trials(broken))
    assert not can_stack(wan, stack, rules)
