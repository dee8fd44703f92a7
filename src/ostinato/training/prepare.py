"""Makes what a run needs before its first step: codec, tokenizer and latents, once per folder.

A resumed run finds them in the folder and checks that they are its own: by the data digest, and by
the digest of the parent, since latents mean the same only under one codec.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ostinato.errors import RecipeMismatch
from ostinato.models.builtin import world
from ostinato.models.builtin.codec import PatchCodec, load_codec, save_codec
from ostinato.models.builtin.layout import CODEC, TOKENIZER
from ostinato.models.builtin.text import build_tokenizer, load_tokenizer
from ostinato.training.codec_fit import fit_codec, psnr
from ostinato.training.config import TrainingConfig
from ostinato.training.data.clips import (
    ClipSet,
    data_digest,
    encode_clips,
    make_scenes,
    to_float_frames,
)
from ostinato.training.lineage import Parent

PREPARED, SUMMARY, LATENTS = "prepared", "summary.json", "latents.safetensors"
_DATA, _PARENT = "data_digest", "parent_digest"
_NUM_PSNR_CLIPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Inputs of the training loop."""

    codec: PatchCodec
    tokenizer: PreTrainedTokenizerFast
    train: ClipSet
    validation: ClipSet


def prepare(
    config: TrainingConfig,
    run_dir: Path,
    report: Callable[[str], None] = lambda _: None,
    parent: Parent | None = None,
) -> Prepared:
    """Return the prepared inputs of a run, making them if the folder has none yet.

    parent: weights whose codec and tokenizer are taken over; None: they are made.
    Raises RecipeMismatch when the folder was prepared for other data or from another parent.
    """
    folder = run_dir / PREPARED
    require_own(config, run_dir, parent)
    if not (folder / SUMMARY).is_file():
        _make(config, folder, report, parent)
    latents = load_file(folder / LATENTS)
    return Prepared(
        codec=load_codec(folder / CODEC),
        tokenizer=load_tokenizer(folder / TOKENIZER),
        train=ClipSet(
            latents=latents["train"],
            scenes=make_scenes(config.seed, world.Split.TRAIN, config.data.num_clips),
        ).with_emphasis(config.method.emphasis),
        validation=ClipSet(
            latents=latents["validation"],
            scenes=make_scenes(config.seed, world.Split.HELD_OUT, config.data.num_validation_clips),
        ),
    )


def require_own(config: TrainingConfig, run_dir: Path, parent: Parent | None) -> None:
    """Raise RecipeMismatch when a folder is prepared, but not from this data and parent."""
    folder = run_dir / PREPARED
    if not (folder / SUMMARY).is_file():
        return
    summary = json.loads((folder / SUMMARY).read_text())
    own = {_DATA: data_digest(config), _PARENT: _parent_digest(parent)}
    found = {name: summary.get(name) for name in own}
    if found != own:
        raise RecipeMismatch(
            f"{str(folder)!r} was prepared from {found!r}, this run needs {own!r}: the world, the "
            "data sizes or the parent's weights are others; start in another folder"
        )


def _make(
    config: TrainingConfig,
    folder: Path,
    report: Callable[[str], None],
    parent: Parent | None,
) -> None:
    start = time.process_time()
    folder.mkdir(parents=True, exist_ok=True)
    data = config.data
    scenes = make_scenes(config.seed, world.Split.TRAIN, data.num_clips)
    held_out = make_scenes(config.seed, world.Split.HELD_OUT, data.num_validation_clips)
    if parent is None:
        report(f"fitting the codec on {data.num_codec_clips} clips")
        codec = fit_codec(
            _render_uint8(scenes[: data.num_codec_clips], data.num_frames),
            config.architecture.codec,
            config.codec,
            config.seed,
            autocast=config.autocast,
        )
        tokenizer = build_tokenizer(world.words())
    else:
        codec, tokenizer = _taken_over(parent)
    save_codec(codec, folder / CODEC, torch.float32)
    tokenizer.save_pretrained(folder / TOKENIZER)
    clips = [
        to_float_frames(world.render(scene, data.num_frames))
        for scene in held_out[:_NUM_PSNR_CLIPS]
    ]
    quality = psnr(codec, torch.cat(clips))
    report(f"codec: {quality:.2f} dB on held-out clips; encoding {data.num_clips} clips")
    latents = {
        "train": encode_clips(codec, scenes, data.num_frames).latents,
        "validation": encode_clips(codec, held_out, data.num_frames).latents,
    }
    save_file(latents, folder / LATENTS)
    summary = {
        _DATA: data_digest(config),
        _PARENT: _parent_digest(parent),
        "codec_psnr_db": quality,
        "prepare_cpu_s": round(time.process_time() - start, 1),
    }
    partial = folder / f"{SUMMARY}.partial"
    partial.write_text(json.dumps(summary, indent=2) + "\n")
    os.replace(partial, folder / SUMMARY)  # last: its presence says that the rest is complete


def _taken_over(parent: Parent) -> tuple[PatchCodec, PreTrainedTokenizerFast]:
    return load_codec(parent.folder / CODEC), load_tokenizer(parent.folder / TOKENIZER)


def _parent_digest(parent: Parent | None) -> str | None:
    return None if parent is None else parent.digest


def _render_uint8(scenes: tuple[world.Scene, ...], num_frames: int) -> Tensor:
    """Render to uint8 [K,3,F,height,width]."""
    frames = [torch.from_numpy(world.render(scene, num_frames)) for scene in scenes]
    return torch.stack(frames).permute(0, 4, 1, 2, 3).contiguous()
