"""The process around a Wan model: its default dtype does not matter and stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ostinato

EULER = "FlowMatchEulerDiscreteScheduler"  # UniPC is held to this by the conformance suite


def generate(folder: Path) -> tuple[bytes, bytes]:
    with ostinato.load(folder) as model:
        made = model.generate(
            "a red circle",
            height=32,
            width=32,
            num_frames=5,
            num_inference_steps=3,
            outputs=("video", "latents"),
        )
    return made.video.frames.tobytes(), made.latents.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_bytes_do_not_depend_on_the_default_dtype(
    tiny_wan_folder: Callable[[str], Path], dtype: torch.dtype
) -> None:
    folder = tiny_wan_folder(EULER)
    expected = generate(folder)
    torch.set_default_dtype(dtype)
    try:
        assert generate(folder) == expected
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(torch.float32)
