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
_LADDER = ((16, 16), (32, 32), (48, 48), (64, 64), (96, 96), (128, 128), (192, 192), (256, 256))
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


def calibrate(model: ResidentModel) -> tuple[ClipSize, ...]:
    """Time a bare step at growing sizes until one takes longer than 16 ms."""
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
            step_s = statistics.median(seconds[1:])
            found.append(ClipSize(height=height, width=width, step_s=step_s))
            if step_s > STEP_S:
                break
    return tuple(found)


def nearest(sizes: Sequence[ClipSize]) -> ClipSize:
    """Return the size whose step is nearest to 16 ms, as a ratio."""
    return min(sizes, key=lambda size: max(size.step_s / STEP_S, STEP_S / size.step_s))
