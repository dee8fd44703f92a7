"""Weights are moved to aligned memory with everything else about them unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ostinato.backend.alignment import ALIGNMENT_BYTES, align_parameters, align_tensor, is_aligned


def _misaligned(tensor: torch.Tensor, shift_bytes: int) -> torch.Tensor:
    """Copy into memory that starts `shift_bytes` past an aligned address, as a mapped file may."""
    raw = torch.empty(tensor.nbytes + 2 * ALIGNMENT_BYTES, dtype=torch.uint8)
    start = -raw.data_ptr() % ALIGNMENT_BYTES + shift_bytes
    moved = raw[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return moved.copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("shift_bytes", [8, 24, 56])
def test_a_misaligned_tensor_is_copied(dtype: torch.dtype, shift_bytes: int) -> None:
    tensor = _misaligned(torch.arange(15, dtype=dtype).view(3, 5), shift_bytes)
    assert not is_aligned(tensor)
    aligned = align_tensor(tensor)
    assert is_aligned(aligned)
    assert aligned.dtype == dtype
    assert torch.equal(aligned, tensor)


def test_an_aligned_tensor_is_not_copied() -> None:
    aligned = align_tensor(_misaligned(torch.ones(7), 4))
    assert align_tensor(aligned) is aligned


def test_a_transposed_weight_becomes_contiguous() -> None:
    weight = torch.arange(6.0).view(2, 3).t()
    assert align_tensor(weight).is_contiguous()
    assert torch.equal(align_tensor(weight), weight)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 32)
        self.linear = nn.Linear(32, 8)
        self.linear.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.register_buffer("table", torch.arange(3.0), persistent=False)
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = _misaligned(tensor.data, 4)


def test_a_module_keeps_its_objects_ties_and_flags() -> None:
    module = _Tied()
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in _tensors(module).items()}
    assert not any(is_aligned(tensor) for tensor, _ in before.values())
    align_parameters(module)
    for name, tensor in _tensors(module).items():
        assert is_aligned(tensor), name
        assert tensor is before[name][0], name
        assert torch.equal(tensor, before[name][1]), name
    assert module.linear.weight is module.embedding.weight
    assert module.linear.weight.requires_grad
    assert not module.frozen.requires_grad


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


@torch.no_grad()
def test_alignment_makes_equal_weights_give_equal_bits() -> None:
    """Misaligned, they give other bits on some processors; aligned, they may not on any."""
    torch.manual_seed(0)
    hidden_states = torch.randn(40, 96)
    reference = nn.Linear(96, 160)
    align_parameters(reference)
    for shift_bytes in range(4, ALIGNMENT_BYTES, 4):
        other = nn.Linear(96, 160)
        for mine, theirs in zip(other.parameters(), reference.parameters(), strict=True):
            mine.data = _misaligned(theirs.data, shift_bytes)
        align_parameters(other)
        assert torch.equal(other(hidden_states), reference(hidden_states))
