"""Renders the training clips of the built-in world once and keeps their latents in memory.

Invariant: clip i of a split is a function of (seed, split, i) alone, so scenes and captions are
made again at will; only the latents, which cost a render each, are stored.
"""

# B batch, C channel, T latent frame, H W latent, K clip

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ostinato.models.builtin import world
from ostinato.models.builtin.codec import PatchCodec
from ostinato.training.config import TrainingConfig
from ostinato.training.data.emphasis import Emphasis, draw_shares

# The modules of the world that decide what a clip shows and how it is captioned.
_SOURCES = ("backdrop.py", "captions.py", "geometry.py", "render.py", "scene.py", "vocabulary.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSet:
    """Latents float16 [K,C,T,H,W] and the scenes they were rendered from."""

    latents: Tensor
    scenes: tuple[world.Scene, ...]
    shares: np.ndarray | None = None  # float64 [K], how often each clip is drawn; None: all alike

    def with_emphasis(self, emphasis: Emphasis) -> ClipSet:
        """Return the same clips with those that show an attribute drawn more often.

        Raises BadInput when an attribute changes nothing, since no clip shows it or all do.
        """
        if not emphasis:
            return self
        return replace(self, shares=draw_shares(self.scenes, emphasis))

    def draw(
        self, rng: np.random.Generator, batch: int, num_latent_frames: int, text_drop: float
    ) -> tuple[Tensor, list[str]]:
        """Draw random crops, float32 [B,C,num_latent_frames,H,W], with freshly worded captions.

        A dropped caption is the empty prompt: the very text that guidance's other branch uses.
        """
        count = len(self.scenes)
        clips = (
            rng.integers(count, size=batch)
            if self.shares is None
            else rng.choice(count, size=batch, p=self.shares)
        )
        starts = rng.integers(self.latents.shape[2] - num_latent_frames + 1, size=batch)
        crops = torch.stack(
            [
                self.latents[int(clip), :, int(start) : int(start) + num_latent_frames]
                for clip, start in zip(clips, starts, strict=True)
            ]
        )
        captions = [
            "" if rng.random() < text_drop else world.caption(self.scenes[int(clip)], rng)
            for clip in clips
        ]
        return crops.float(), captions


def scene_rng(seed: int, split: world.Split, index: int) -> np.random.Generator:
    """Return the generator of clip `index` of a split."""
    return np.random.default_rng([seed, tuple(world.Split).index(split), index])


def make_scenes(seed: int, split: world.Split, num_clips: int) -> tuple[world.Scene, ...]:
    """Sample the one-object scenes of a split."""
    return tuple(
        world.sample_scene(scene_rng(seed, split, index), split=split, num_objects=1)
        for index in range(num_clips)
    )


def to_float_frames(frames: np.ndarray) -> Tensor:
    """Convert uint8 [T,height,width,3] to float32 [1,3,T,height,width] in [-1,1]."""
    return torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1.0


def rendered(scenes: tuple[world.Scene, ...], num_frames: int) -> Iterator[Tensor]:
    """Yield each scene as float32 [1,3,T,height,width] in [-1,1]."""
    for scene in scenes:
        yield to_float_frames(world.render(scene, num_frames))


@torch.no_grad()
def encode_clips(codec: PatchCodec, scenes: tuple[world.Scene, ...], num_frames: int) -> ClipSet:
    """Render and encode all scenes."""
    latents = [codec.encode(frames).half() for frames in rendered(scenes, num_frames)]
    return ClipSet(latents=torch.cat(latents), scenes=scenes)


def data_digest(config: TrainingConfig) -> str:
    """Return the sha256 of what determines the data: the world's source, seed, sizes and codec."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(name.encode())
        digest.update((Path(world.__file__).parent / name).read_bytes())
    described: dict[str, object] = {
        "seed": config.seed,
        "data": asdict(config.data),
        "codec": asdict(config.codec),
        "codec_sizes": asdict(config.architecture.codec),
        "autocast": config.autocast,
    }
    digest.update(json.dumps(described, sort_keys=True).encode())
    return digest.hexdigest()
