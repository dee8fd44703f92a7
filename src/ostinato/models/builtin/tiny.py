"""Writes a small built-in model folder with seeded random weights, in the shipped layout.

Random weights say nothing of quality and everything of plumbing: a folder for gates and tests. Its
weights have the same bits wherever it is written, so that its goldens can be kept.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from ostinato.backend.loading import loading
from ostinato.backend.seeded import fill, uniform
from ostinato.models.builtin.architecture import (
    BuiltinArchitecture,
    build_text_encoder,
    build_transformer,
)
from ostinato.models.builtin.codec import PatchCodec
from ostinato.models.builtin.layout import PROVENANCE, BuiltinModules, save_modules
from ostinato.models.builtin.text import build_tokenizer
from ostinato.models.builtin.world import words


def write_tiny_builtin(folder: Path, seed: int = 0) -> Path:
    """Write the folder and return it."""
    arch = BuiltinArchitecture(num_layers=2, num_attention_heads=2, ffn_dim=128)
    tokenizer = build_tokenizer(words())
    with loading():
        torch.manual_seed(seed)
        codec = PatchCodec(arch.codec)
        codec.fit_linear(uniform((4096, arch.codec.patch_values), f"{seed}/patches") * 0.25)
        modules = BuiltinModules(
            transformer=_randomised(build_transformer(arch)),
            text_encoder=build_text_encoder(arch, len(tokenizer)).eval(),
            tokenizer=tokenizer,
            codec=codec.eval(),
        )
    fill(modules.transformer, f"{seed}/transformer")
    fill(modules.text_encoder, f"{seed}/text_encoder")
    fill(modules.codec, f"{seed}/codec")
    save_modules(modules, folder, torch.float16)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != PROVENANCE)
    digests = {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }
    provenance = {"command": "write_tiny_builtin", "seed": seed, "steps": 0, "sha256": digests}
    (folder / PROVENANCE).write_text(json.dumps(provenance))
    return folder


@torch.no_grad()
def _randomised(transformer: WanTransformer3DModel) -> WanTransformer3DModel:
    """Give the zero-initialised output layer values, so that every weight matters."""
    for parameter in transformer.parameters():
        if not parameter.any():
            parameter.normal_(std=0.05)
    return transformer.eval()
