"""Measure what fast batching gives up and gains, for cards to declare and a page to show.

`PYTHONPATH=src .venv/bin/python tests/parity/measure_fast_batching.py [PAGE]` prints a table, and
puts it between its markers in PAGE. Beside what the gate `fast` measures, the same requests are
served in a process of the processor's own kernels and in one of SSE kernels (the processor needs
AVX2 or more). There every layer rounds otherwise at every step, where a stack outside the exact
batch rules makes some do so: cards are set from these errors, with headroom.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from ostinato.card import ModelSource
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import WanSizes, write_tiny_wan
from ostinato.parity.gates.fast import fast
from ostinato.parity.precision import write_between_markers
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


_MARKER = "fast batching"
_HEAD = (
    "| model | declared | other kernels, 20 steps | gate | 8 stacked | at | exact rules |",
    "|---|---|---|---|---|---|---|",
)


def table() -> str:
    """Return one row a model."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, sizes in (("small", WanSizes()), ("deep", _DEEP)):
            write_tiny_wan(root / name, sizes=sizes)
        found: list[dict[str, list[torch.Tensor]]] = []
        for index, environment in enumerate(({}, _OTHER)):
            path = root / f"{index}.pt"
            command = [sys.executable, __file__, folder, str(path)]
            subprocess.run(command, env={**os.environ, **environment}, check=True)
            found.append(torch.load(path, weights_only=True))
        rows = [
            _row(name, source, found[1][name], found[0][name])
            for name, source in _models(root).items()
        ]
    return "\n".join((*_HEAD, *rows)) + "\n"


def serve(root: Path, path: Path) -> None:
    """Serve the requests of every model and keep their latents."""
    torch.save({name: _latents(source) for name, source in _models(root).items()}, path)


def _models(root: Path) -> dict[str, ModelSource]:
    small, deep = open_model(root / "small"), open_model(root / "deep")
    return {
        "`builtin` float32": open_model("builtin"),
        "small Wan float32": small,
        "small Wan bfloat16": _in_bfloat16(small),
        "deep Wan float32": deep,
        "deep Wan bfloat16": _in_bfloat16(deep),
    }


def _row(
    name: str, source: ModelSource, there: list[torch.Tensor], here: list[torch.Tensor]
) -> str:
    errors = [measure(*pair) for pair in zip(there, here, strict=True)]
    moved = max(max(error.largest, error.rms) for error in errors)
    result = fast(Subject(source, VerifyOptions(quick=True)))
    assert result.passed, result.message
    told, size = result.detail, cast("list[int]", result.detail["timed_size"])
    rules = "allow it" if told["exact_rules_allow_it"] else "refuse it"
    return (
        f"| {name} | {told['tolerance']:.0e} | {moved:.1e} | {result.worst_relative_error:.1e} "
        f"| {told['fast_over_alone']:.2f} | {'x'.join(map(str, size))} | {rules} |"
    )


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
    if len(sys.argv) == 3:
        serve(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        measured = table()
        print(measured)
        if len(sys.argv) == 2:
            write_between_markers(Path(sys.argv[1]), _MARKER, measured)
