"""Seeded weights have the same bits on every processor, and keep what an initialisation meant."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ostinato.backend.seeded import fill, uniform


def test_draws_are_those_of_the_hash() -> None:
    drawn = uniform((2, 2), "0/patches")
    digest = hashlib.shake_256(b"0/patches").digest(8)
    by_hand = [
        (int.from_bytes(digest[i : i + 2], "little") // 32 - 1024) / 1024 for i in range(0, 8, 2)
    ]
    assert drawn.dtype is torch.float32
    assert drawn.flatten().tolist() == by_hand
    assert not torch.equal(drawn, uniform((2, 2), "1/patches"))


def test_draws_are_uniform_and_survive_float16() -> None:
    drawn = uniform((1 << 16,), "any")
    assert torch.equal(drawn.half().float(), drawn)
    assert float(drawn.min()) == -1.0
    assert float(drawn.max()) == 1.0 - 2.0**-10
    assert abs(float(drawn.mean())) < 0.01
    assert float(drawn.std()) == pytest.approx(3.0**-0.5, rel=0.01)


def test_a_module_keeps_its_constants_and_its_scale() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    nn.init.zeros_(module[0].bias)  # type: ignore[arg-type]
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    fill(module, "0")
    for name in ("0.bias", "1.weight", "1.bias"):
        assert torch.equal(module.get_parameter(name), before[name])
    weight = module.get_parameter("0.weight").detach()
    assert not torch.equal(weight, before["0.weight"])
    assert 0.7 < float(weight.std() / before["0.weight"].std()) < 1.43


WRITE = """
import hashlib, sys
from pathlib import Path
from ostinato.models.builtin.tiny import write_tiny_builtin
from ostinato.models.wan.tiny import write_tiny_wan
root = Path(sys.argv[1])
for name, write in (("builtin", write_tiny_builtin), ("wan", write_tiny_wan)):
    for path in sorted(write(root / name).rglob("*")):
        if path.is_file():
            print(name, path.name, hashlib.sha256(path.read_bytes()).hexdigest())
"""


@pytest.mark.slow
def test_tiny_folders_are_the_same_with_other_vector_units(tmp_path: Path) -> None:
    """Goldens of what they give are worth nothing elsewhere if the weights are others there."""

    def written(name: str, **settings: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", WRITE, str(tmp_path / name)],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    here = written("here")
    plain = written("plain", ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE")
    assert here.count("\n") >= 20
    assert here == plain
