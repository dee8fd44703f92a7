"""Rotary tables equal the library's where it has any, and go on where it has none."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

from ostinato.backend.nets.rotary import rotary_tables, rotate


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_tables_equal_the_library_bit_for_bit(head_dim: int) -> None:
    library = WanRotaryPosEmbed(head_dim, (1, 2, 2), max_seq_len=1024)
    cos, sin = library(torch.empty(1, 1, 1024, 10, 14))
    tables = rotary_tables(torch.arange(1024), rows=5, columns=7, head_dim=head_dim)
    assert torch.equal(tables.cos, cos)
    assert torch.equal(tables.sin, sin)


def test_positions_need_no_table_and_may_differ_by_sample() -> None:
    far = torch.tensor([[0, 1, 2], [10**7, 10**7 + 1, 10**7 + 2]])
    tables = rotary_tables(far, rows=2, columns=2, head_dim=32)
    assert tables.cos.shape == (2, 12, 1, 32)
    for sample, positions in enumerate(far):
        alone = rotary_tables(positions, rows=2, columns=2, head_dim=32)
        assert torch.equal(tables.cos[sample], alone.cos[0])
        assert torch.equal(tables.sin[sample], alone.sin[0])


def test_rotation_is_a_complex_product() -> None:
    torch.manual_seed(0)
    hidden_states = torch.randn(2, 12, 3, 32, dtype=torch.float64)
    tables = rotary_tables(torch.arange(3), rows=2, columns=2, head_dim=32)
    turned = rotate(hidden_states, tables.cos.double(), tables.sin.double())
    phase = torch.complex(tables.cos[..., ::2].double(), tables.sin[..., ::2].double())
    expected = torch.view_as_complex(hidden_states.unflatten(-1, (-1, 2))) * phase
    torch.testing.assert_close(turned, torch.view_as_real(expected).flatten(-2))


def test_rotation_keeps_the_dtype() -> None:
    tables = rotary_tables(torch.arange(1), rows=1, columns=1, head_dim=32)
    assert rotate(torch.ones(1, 1, 1, 32, dtype=torch.bfloat16), *tables).dtype == torch.bfloat16
