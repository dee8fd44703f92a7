"""Make the libraries' modules compute in float64 throughout, as an oracle for the reference.

`module.double()` is not enough: in places the libraries cast to float32 by name.
"""
# B batch, R row, D width

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from diffusers.models import embeddings
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.umt5.modeling_umt5 import UMT5LayerNorm

Values = list[tuple[str, torch.Tensor]]


def compute_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every cast to float32 that the served forwards make be one to float64 instead.

    Modules must be built under it as well: rotary tables are rounded when they are made.
    """
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(UMT5LayerNorm, "forward", _umt5_norm)
    monkeypatch.setattr(embeddings, "get_timestep_embedding", _timestep_embedding)


def _umt5_norm(self: UMT5LayerNorm, hidden_states: torch.Tensor) -> torch.Tensor:
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    return self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)


def _timestep_embedding(timesteps_R: torch.Tensor, dim: int, **settings: object) -> torch.Tensor:
    """The library's embedding but for its float32: cosines first, as Wan configures it."""
    assert settings["flip_sin_to_cos"]
    assert settings["downscale_freq_shift"] == 0
    periods = 10000.0 ** (torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    angles_RD = timesteps_R.double()[:, None] / periods
    return torch.cat((angles_RD.cos(), angles_RD.sin()), dim=1)


def assert_same_values(found: Values, expected: Values, rtol: float) -> None:
    """Hold two records of taps against each other: names, order, shapes, values.

    rtol: of the largest value of each tap.
    """
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, mine), (_, theirs) in zip(found, expected, strict=True):
        assert_same(mine, theirs, rtol, name)


def assert_same(found: torch.Tensor, expected: torch.Tensor, rtol: float, name: str = "") -> None:
    """Hold a float64 tensor against another; rtol is of the largest expected value."""
    assert found.dtype == torch.float64, name
    assert found.shape == expected.shape, name
    scale = float(expected.abs().max())
    assert scale > 0, f"{name} is zero everywhere, which proves nothing"
    difference = float((found - expected.double()).abs().max())
    assert difference <= rtol * scale, f"{name}: {difference / scale:.3g} of the largest value"


def perturb_weights(folder: Path, seed: int = 0) -> None:
    """Move every weight below a folder: stock values hide what they multiply or add."""
    generator = torch.Generator().manual_seed(seed)
    for file in sorted(folder.rglob("*.safetensors")):
        state = {
            name: value + 0.1 * torch.randn(value.shape, generator=generator).to(value.dtype)
            for name, value in load_file(file).items()
        }
        save_file(state, file, metadata={"format": "pt"})


def load_double(module: nn.Module, file: Path, tied: Mapping[str, str] | None = None) -> None:
    """Load a file into a module in float64, strictly; tied: names of what is stored once."""
    state = {name: value.double() for name, value in load_file(file).items()}
    state |= {name: state[source] for name, source in (tied or {}).items()}
    module.double().load_state_dict(state, strict=True)
    module.eval().requires_grad_(False)
