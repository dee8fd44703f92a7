"""Tiny seeded Wan transformers of the library's own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from ostinato.backend.alignment import align_parameters

TEXT_DIM = 32
CHANNELS = 4


@pytest.fixture(scope="session")
def make_wan() -> Callable[..., WanTransformer3DModel]:
    """Return a builder of aligned transformers; keyword arguments override the configuration."""

    def build(**overrides: Any) -> WanTransformer3DModel:
        torch.manual_seed(0)
        config: dict[str, Any] = {  # as the library types its configuration
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "text_dim": TEXT_DIM,
            "freq_dim": 32,
            "ffn_dim": 128,
            "num_layers": 3,
        }
        transformer = WanTransformer3DModel(**(config | overrides)).eval()
        # Stock initialisation leaves norm weights at one, which would hide a mistake in them.
        for name, parameter in transformer.named_parameters():
            if "norm" in name:
                parameter.data += 0.2 * torch.randn_like(parameter)
        align_parameters(transformer)
        return transformer

    return build


@pytest.fixture(scope="session")
def wan(make_wan: Callable[..., WanTransformer3DModel]) -> WanTransformer3DModel:
    """Width 64, three layers."""
    return make_wan()
