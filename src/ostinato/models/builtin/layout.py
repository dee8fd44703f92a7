"""The folder in which the built-in model ships, laid out as diffusers lays out a pipeline.

Weights are float16 safetensors on disk and float32 in memory; keys must match exactly.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import WanTransformer3DModel
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.codec import PatchCodec, load_codec, save_codec
from ostinato.models.builtin.text import load_tokenizer

TRANSFORMER, TEXT_ENCODER, TOKENIZER, CODEC = "transformer", "text_encoder", "tokenizer", "codec"
PROVENANCE = "provenance.json"
WEIGHTS_FOLDER = Path(__file__).parent / "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModules:
    """The live modules of the built-in model."""

    transformer: WanTransformer3DModel
    text_encoder: UMT5EncoderModel
    tokenizer: PreTrainedTokenizerFast
    codec: PatchCodec


def save_modules(modules: BuiltinModules, folder: Path, dtype: torch.dtype) -> None:
    """Write the four component folders; the modules themselves are left as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(modules.transformer).to(dtype).save_pretrained(folder / TRANSFORMER)
    copy.deepcopy(modules.text_encoder).to(dtype).save_pretrained(folder / TEXT_ENCODER)
    modules.tokenizer.save_pretrained(folder / TOKENIZER)
    save_codec(modules.codec, folder / CODEC, dtype)


def load_modules(folder: Path = WEIGHTS_FOLDER) -> BuiltinModules:
    """Load all four components in float32, in evaluation mode.

    Raises InvalidCheckpoint when a component is missing or its keys do not match.
    """
    return BuiltinModules(
        transformer=load_transformer(folder / TRANSFORMER),
        text_encoder=load_text_encoder(folder / TEXT_ENCODER),
        tokenizer=load_tokenizer(_existing(folder / TOKENIZER)),
        codec=load_codec(_existing(folder / CODEC)),
    )


def load_transformer(folder: Path) -> WanTransformer3DModel:
    """Load the transformer in float32; raises InvalidCheckpoint on any missing or extra key."""
    model, info = WanTransformer3DModel.from_pretrained(
        _existing(folder), torch_dtype=torch.float32, output_loading_info=True
    )
    _require_strict(info, folder)
    return model.eval().requires_grad_(False)


def load_text_encoder(folder: Path) -> UMT5EncoderModel:
    """Load the text encoder in float32; raises InvalidCheckpoint on any missing or extra key."""
    model, info = UMT5EncoderModel.from_pretrained(
        _existing(folder), dtype=torch.float32, output_loading_info=True
    )
    _require_strict(info, folder)
    return model.eval().requires_grad_(False)


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise InvalidCheckpoint(
            f"{str(folder)!r} is missing; expected a folder with the components "
            f"{TRANSFORMER!r}, {TEXT_ENCODER!r}, {TOKENIZER!r} and {CODEC!r}"
        )
    return folder


def _require_strict(info: dict[str, object], folder: Path) -> None:
    faults = {
        kind: sorted(str(key) for key in keys)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if (keys := info.get(kind)) and isinstance(keys, (list, set, tuple))
    }
    if faults:
        raise InvalidCheckpoint(
            f"the weights in {str(folder)!r} do not match their configuration: {faults!r}; "
            "expected every key exactly once"
        )
