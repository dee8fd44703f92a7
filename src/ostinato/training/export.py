"""Writes the averaged weights of a run as the folder that ships; works while the run goes on."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.codec import load_codec
from ostinato.models.builtin.layout import (
    CODEC,
    PROVENANCE,
    TOKENIZER,
    BuiltinModules,
    save_modules,
)
from ostinato.models.builtin.text import load_tokenizer
from ostinato.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint
from ostinato.training.config import TrainingConfig, read_config
from ostinato.training.curve import CURVE, Curve, logged_curve
from ostinato.training.flow_model import FlowModel
from ostinato.training.lineage import read_parent
from ostinato.training.prepare import PREPARED, SUMMARY

_RECORDED_PACKAGES = ("diffusers", "numpy", "safetensors", "tokenizers", "torch", "transformers")


def export_weights(run_dir: Path | str, destination: Path | str) -> Path:
    """Export the latest checkpoint of a run in float16; returns the destination.

    Raises InvalidCheckpoint when the run has no checkpoint yet, or its log lacks the validation
    losses of that checkpoint; nothing is written then.
    """
    run_dir, destination = Path(run_dir), Path(destination)
    found = list_checkpoints(run_dir)
    if not found:
        raise InvalidCheckpoint(
            f"{str(run_dir)!r} has no checkpoint; expected a folder that a training run wrote to"
        )
    checkpoint = load_checkpoint(found[-1])
    config = read_config(run_dir)
    curve = logged_curve(run_dir, checkpoint.state.step)
    save_modules(_modules(run_dir, config, checkpoint), destination, torch.float16)
    provenance = _provenance(run_dir, config, checkpoint, curve, destination)
    (destination / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n")
    return destination


def _modules(run_dir: Path, config: TrainingConfig, checkpoint: Checkpoint) -> BuiltinModules:
    prepared = run_dir / PREPARED
    tokenizer = load_tokenizer(prepared / TOKENIZER)
    model = FlowModel.build(config, tokenizer).frozen_copy()
    with torch.no_grad():
        for name, parameter in model.parameters().items():
            parameter.copy_(checkpoint.tensors["average"][name])
    return BuiltinModules(
        transformer=model.transformer,
        text_encoder=model.text_encoder,
        tokenizer=tokenizer,
        codec=load_codec(prepared / CODEC),
    )


def _provenance(
    run_dir: Path,
    config: TrainingConfig,
    checkpoint: Checkpoint,
    curve: Curve,
    destination: Path,
) -> dict[str, object]:
    summary = json.loads((run_dir / PREPARED / SUMMARY).read_text())
    files = sorted(path for path in destination.rglob("*") if path.is_file())
    return {
        "command": f"ostinato train {config.name}",
        "seed": config.seed,
        "config_digest": checkpoint.state.config_digest,
        "data_digest": summary["data_digest"],
        "source_commit": checkpoint.state.source_commit,
        "steps": checkpoint.state.step,
        "planned_steps": config.steps,
        "prepare_cpu_s": summary["prepare_cpu_s"],
        "train_cpu_s": round(checkpoint.state.cpu_s, 1),
        "train_wall_s": round(checkpoint.state.wall_s, 1),
        "codec_psnr_db": summary["codec_psnr_db"],
        CURVE: curve,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "parent": read_parent(run_dir),
        "versions": {name: version(name) for name in _RECORDED_PACKAGES},
        "sha256": {
            path.relative_to(destination).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path.name != PROVENANCE
        },
    }
