"""Measure how far latents go when every kernel rounds otherwise, as kernels of other units do.

`PYTHONPATH=src .venv/bin/python tests/parity/measure_other_kernels.py` on a processor with AVX2 or
more: serves the same requests in a process of its own kernels and in one of SSE kernels, and prints
the largest relative errors. A stack outside the exact batch rules makes some kernels round
otherwise, so what cards declare for fast batching is set from these, with headroom.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from ostinato.card import ModelSource
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import WanSizes, write_tiny_wan
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.parity.tolerances import measure
from ostinato.tasks import OutputName

# Scales without, with usual and with strong guidance; sides in pixels where a family has several.
_REQUESTS = ((3.0, 16), (1.0, 32), (6.0, 64))
_STEPS = 20
_OTHER = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
_DEEP = WanSizes(num_layers=8, num_attention_heads=8, ffn_dim=1024, text_dim=64)


def compare() -> None:
    """Print a line a model."""
    with tempfile.TemporaryDirectory() as root:
        for name, sizes in (("small", WanSizes()), ("deep", _DEEP)):
            write_tiny_wan(Path(root) / name, sizes=sizes)
        found: list[dict[str, list[torch.Tensor]]] = []
        for index, environment in enumerate(({}, _OTHER)):
            path = Path(root) / f"{index}.pt"
            command = [sys.executable, __file__, root, str(path)]
            subprocess.run(command, env={**os.environ, **environment}, check=True)
            found.append(torch.load(path, weights_only=True))
    for name, latents in found[0].items():
        errors = [measure(*pair) for pair in zip(found[1][name], latents, strict=True)]
        told = ", ".join(f"{error.largest:.2e} (rms {error.rms:.2e})" for error in errors)
        print(f"{name}: {told}")


def serve(root: Path, path: Path) -> None:
    """Serve the requests of every model and keep their latents."""
    small, deep = open_model(root / "small"), open_model(root / "deep")
    models = {
        "builtin float32": open_model("builtin"),
        "small Wan float32": small,
        "deep Wan float32": deep,
        "small Wan bfloat16": _in_bfloat16(small),
        "deep Wan bfloat16": _in_bfloat16(deep),
    }
    torch.save({name: _latents(source) for name, source in models.items()}, path)


def _latents(source: ModelSource) -> list[torch.Tensor]:
    subject, sides = Subject(source, VerifyOptions()), source.card.capabilities.height
    many = all(sides.accepts(side) for _, side in _REQUESTS)
    asked = []
    for index, (scale, side) in enumerate(_REQUESTS):
        asked_for = {"guidance_scale": scale, "num_inference_steps": _STEPS}
        if many:
            asked_for |= {"height": side, "width": side, "num_frames": 1}
        asked.append(subject.request(index, outputs=(OutputName.LATENTS,), **asked_for))
    return [output.latents.clone() for output in subject.alone(asked)]


def _in_bfloat16(source: ModelSource) -> ModelSource:
    card = source.card
    derived = card.derive(
        precision=replace(card.precision, weights="bfloat16"),
        recipe=replace(card.recipe, assumes_precision="bfloat16"),
    )
    return ModelSource(card=derived, folder=source.folder)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        compare()
    else:
        serve(Path(sys.argv[1]), Path(sys.argv[2]))
