"""Makes what a run needs before its first step: codec, tokenizer and latents, once per folder.

A resumed run finds them in the folder and checks by the data digest that they are its own.
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

PREPARED, SUMMARY, LATENTS = "prepared", "summary.json", "latents.safetensors"
_NUM_PSNR_CLIPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Inputs of the training loop."""

    codec: PatchCodec
    tokenizer: PreTrainedTokenizerFast
    train: ClipSet
    validation: ClipSet
    digest: str
    codec_psnr_db: float
    cpu_s: float  # what making them cost, once


def prepare(
    config: TrainingConfig,
    run_dir: Path,
    report: Callable[[str], None] = lambda _: None,
    parent: Path | None = None,
) -> Prepared:
    """Return the prepared inputs of a run, making them if the folder has none yet.

    parent: folder of weights whose codec and tokenizer are taken over; None: they are made.
    Raises RecipeMismatch when the folder was prepared for other data.
    """
    folder = run_dir / PREPARED
    digest = data_digest(config)
    if not (folder / SUMMARY).is_file():
        _make(config, folder, digest, report, parent)
    summary = json.loads((folder / SUMMARY).read_text())
    if summary["data_digest"] != digest:
        raise RecipeMismatch(
            f"{str(folder)!r} holds data {summary['data_digest'][:12]!r}, this run needs "
            f"{digest[:12]!r}: the world or the data sizes changed; start in another folder"
        )
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
        digest=digest,
        codec_psnr_db=summary["codec_psnr_db"],
        cpu_s=summary["prepare_cpu_s"],
    )


def _make(
    config: TrainingConfig,
    folder: Path,
    digest: str,
    report: Callable[[str], None],
    parent: Path | None,
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
        codec, tokenizer = load_codec(parent / CODEC), load_tokenizer(parent / TOKENIZER)
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
        "data_digest": digest,
        "codec_psnr_db": quality,
        "prepare_cpu_s": round(time.process_time() - start, 1),
    }
    partial = folder / f"{SUMMARY}.partial"
    partial.write_text(json.dumps(summary, indent=2) + "\n")
    os.replace(partial, folder / SUMMARY)  # last: its presence says that the rest is complete


def _render_uint8(scenes: tuple[world.Scene, ...], num_frames: int) -> Tensor:
    """Render to uint8 [K,3,F,height,width]."""
    frames = [torch.from_numpy(world.render(scene, num_frames)) for scene in scenes]
    return torch.stack(frames).permute(0, 4, 1, 2, 3).contiguous()
