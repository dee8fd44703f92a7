"""Muon, AdamW, schedule and average."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ostinato.training.config import OptimizerConfig
from ostinato.training.ema import WeightAverage, ema_decay_at
from ostinato.training.muon import BatchedMuon, orthogonalise
from ostinato.training.optimizer import MuonWithAdamW, is_hidden_matrix, learning_rate_factor


def test_batched_muon_makes_the_steps_of_the_library() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((64, 64), (64, 64), (128, 64), (64, 128))
    ours = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    batched = BatchedMuon(ours, lr=3e-3, weight_decay=0.01)
    library = torch.optim.Muon(theirs, lr=3e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        batched.step()
        library.step()
    for mine, other in zip(ours, theirs, strict=True):
        # The products are bfloat16; one batched and one single product may round apart.
        assert torch.allclose(mine, other, atol=1e-4)


def test_learning_rate_warms_up_holds_and_decays_to_zero() -> None:
    config = OptimizerConfig(warmup_steps=10, decay_share=0.5)
    factors = [learning_rate_factor(config, step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:51] == [1.0] * 42
    assert factors[75] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(0.02)


def test_muon_takes_block_matrices_only() -> None:
    matrix, vector = torch.zeros(4, 4), torch.zeros(4)
    assert is_hidden_matrix("transformer.blocks.0.attn1.to_q.weight", matrix)
    assert is_hidden_matrix("text_encoder.encoder.block.0.layer.0.SelfAttention.q.weight", matrix)
    assert not is_hidden_matrix("transformer.blocks.0.attn1.to_q.bias", vector)
    assert not is_hidden_matrix("transformer.proj_out.weight", matrix)
    assert not is_hidden_matrix("text_encoder.shared.weight", matrix)


def test_optimizer_state_round_trips() -> None:
    def build() -> tuple[dict[str, nn.Parameter], MuonWithAdamW]:
        generator = torch.Generator().manual_seed(1)
        parameters = {
            "transformer.blocks.0.weight": nn.Parameter(torch.randn(32, 32, generator=generator)),
            "bias": nn.Parameter(torch.randn(32, generator=generator)),
        }
        return parameters, MuonWithAdamW(parameters, OptimizerConfig())

    def step(parameters: dict[str, nn.Parameter], optimizer: MuonWithAdamW, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(1.0)

    first, optimizer = build()
    step(first, optimizer, 0)
    second, restored = build()
    with torch.no_grad():
        for name, parameter in second.items():
            parameter.copy_(first[name])
    restored.load_state_tensors(optimizer.state_tensors())
    step(first, optimizer, 1)
    step(second, restored, 1)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_ema_follows_its_formula() -> None:
    assert [round(ema_decay_at(0.998, n), 3) for n in (0, 10, 100, 10_000)] == [
        0.1,
        0.55,
        0.918,
        0.998,
    ]
    parameter = nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage({"w": parameter}, decay=0.998)
    expected = 1.0
    for n, value in enumerate((2.0, 5.0, -1.0)):
        with torch.no_grad():
            parameter.fill_(value)
        average.update({"w": parameter}, n)
        decay = (1 + n) / (10 + n)
        expected = decay * expected + (1 - decay) * value
    assert float(average.tensors["w"]) == pytest.approx(expected, rel=1e-6)


def test_products_take_the_dtype_that_was_asked_for() -> None:
    matrices = torch.randn(2, 32, 48, generator=torch.Generator().manual_seed(0))
    wide = orthogonalise(matrices, torch.float32)
    assert wide.dtype == torch.float32
    assert orthogonalise(matrices).dtype == torch.bfloat16
    singular = torch.linalg.svdvals(wide)
    assert float(singular.min()) > 0.5
    assert float(singular.max()) < 1.3
    assert not torch.equal(wide, orthogonalise(matrices).float())
