"""A small Wan whose steps take about as long as those that an engine must not be felt in."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ostinato.models.wan.tiny import WanSizes, write_tiny_wan
from ostinato.runtime import ResidentModel
from ostinato.runtime.threads import cpu_turn, kernel_threads

# 8 heads of 32 are a width of 256; the feed-forward is four times as wide.
SIZES = WanSizes(num_layers=8, num_attention_heads=8, ffn_dim=1024, text_dim=64)
STEP_S = 16e-3
PROMPT = "a red circle bouncing on a navy background"
# Height and width in pixels, from few tokens to many: 16 by 16 pixels make one.
_LADDER = tuple((edge, edge) for edge in (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512))
_NUM_TIMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSize:
    """Pixels of the only frame, and the seconds of one bare step at that size."""

    height: int
    width: int
    step_s: float

    @property
    def num_tokens(self) -> int:
        """Latent patches, each a token of the transformer."""
        return (self.height // 16) * (self.width // 16)


def write_small_wan(folder: Path, scheduler: str, seed: int) -> Path:
    """Write the folder; the weights depend on the seed alone."""
    return write_tiny_wan(folder, scheduler, SIZES, seed)


def calibrate(model: ResidentModel, step_s: float = STEP_S) -> tuple[ClipSize, ...]:
    """Time a bare step at growing sizes until one takes longer than `step_s`."""
    predict = model.component("transformer").op("predict")
    embeds = torch.zeros(1, 512, SIZES.text_dim)
    timestep = torch.tensor(500)
    found: list[ClipSize] = []
    with cpu_turn(kernel_threads(model.card)), torch.no_grad():
        for height, width in _LADDER:
            latents = torch.zeros(1, 16, 1, height // 8, width // 8)
            seconds: list[float] = []
            for _ in range(_NUM_TIMED + 1):  # the first one warms up
                started = time.perf_counter()
                predict(latents=latents, timestep=timestep, prompt_embeds=embeds)
                seconds.append(time.perf_counter() - started)
            took_s = statistics.median(seconds[1:])
            found.append(ClipSize(height=height, width=width, step_s=took_s))
            if took_s > step_s:
                break
    return tuple(found)


def nearest(sizes: Sequence[ClipSize], step_s: float = STEP_S) -> ClipSize:
    """Return the size whose step is nearest to `step_s`, as a ratio."""
    return min(sizes, key=lambda size: max(size.step_s / step_s, step_s / size.step_s))
