"""The folder in which the built-in model ships, laid out as diffusers lays out a pipeline.

Weights are float16 safetensors on disk and float32 in memory; keys must match exactly.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from ostinato.backend.alignment import align_parameters
from ostinato.backend.checkpoint import DIFFUSERS_STEM, TRANSFORMERS_STEM, read_config
from ostinato.backend.declared import config_faults
from ostinato.backend.loading import loading
from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.codec import (
    CODEC_CONFIG,
    CODEC_WEIGHTS,
    PatchCodec,
    load_codec,
    save_codec,
)
from ostinato.models.builtin.text import load_tokenizer

TRANSFORMER, TEXT_ENCODER, TOKENIZER, CODEC = "transformer", "text_encoder", "tokenizer", "codec"
TRANSFORMER_WEIGHTS = f"{DIFFUSERS_STEM}.safetensors"
TEXT_ENCODER_WEIGHTS = f"{TRANSFORMERS_STEM}.safetensors"
_TIED = "encoder.embed_tokens.weight"  # the same tensor as shared.weight; stored once
PROVENANCE = "provenance.json"
MODEL_INDEX, PIPELINE = "model_index.json", "OstinatoBuiltin"
# Every file that opening or loading reads, but the provenance, which is read for their digests.
FILES = (
    f"{CODEC}/{CODEC_CONFIG}",
    f"{CODEC}/{CODEC_WEIGHTS}",
    MODEL_INDEX,
    f"{TEXT_ENCODER}/config.json",
    f"{TEXT_ENCODER}/{TEXT_ENCODER_WEIGHTS}",
    f"{TOKENIZER}/tokenizer.json",
    f"{TOKENIZER}/tokenizer_config.json",
    f"{TRANSFORMER}/config.json",
    f"{TRANSFORMER}/{TRANSFORMER_WEIGHTS}",
)
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
    transformer, text_encoder = modules.transformer, modules.text_encoder
    transformer.save_config(folder / TRANSFORMER)
    _save_state(transformer.state_dict(), folder / TRANSFORMER / TRANSFORMER_WEIGHTS, dtype)
    config = copy.deepcopy(text_encoder.config)
    config.architectures = [type(text_encoder).__name__]
    config.save_pretrained(folder / TEXT_ENCODER)
    state = {name: t for name, t in text_encoder.state_dict().items() if name != _TIED}
    _save_state(state, folder / TEXT_ENCODER / TEXT_ENCODER_WEIGHTS, dtype)
    modules.tokenizer.save_pretrained(folder / TOKENIZER)
    save_codec(modules.codec, folder / CODEC, dtype)
    (folder / MODEL_INDEX).write_text(json.dumps({"_class_name": PIPELINE}, indent=2) + "\n")


def load_modules(folder: Path = WEIGHTS_FOLDER) -> BuiltinModules:
    """Load all four components in float32, in evaluation mode.

    Raises InvalidCheckpoint when a component is missing or its keys do not match.
    """
    return BuiltinModules(
        transformer=load_transformer(folder / TRANSFORMER),
        text_encoder=load_text_encoder(folder / TEXT_ENCODER),
        tokenizer=load_tokenizer(_existing(folder / TOKENIZER)),
        codec=load_codec(folder / CODEC),
    )


def load_transformer(folder: Path) -> WanTransformer3DModel:
    """Load the transformer in float32; raises InvalidCheckpoint on any missing or extra key."""
    state = _read_state(_existing(folder) / TRANSFORMER_WEIGHTS)
    try:
        with loading():
            config = WanTransformer3DModel.load_config(folder, local_files_only=True)
            transformer = WanTransformer3DModel.from_config(config)  # pyright: ignore[reportArgumentType]
    except Exception as error:
        raise _does_not_build(folder, error) from error
    assert isinstance(transformer, WanTransformer3DModel)
    _load_state(transformer, state, folder)
    return transformer.eval().requires_grad_(False)


class TransformerSizes(NamedTuple):
    """What loops and admission plan by; patch_size [T,H,W]."""

    in_channels: int
    patch_size: tuple[int, int, int]
    width: int
    ffn_dim: int
    num_layers: int


def transformer_sizes(folder: Path) -> TransformerSizes:
    """Read the sizes of a configuration; raises InvalidCheckpoint."""
    config = read_config(folder)
    faults = tuple(config_faults(WanTransformer3DModel, config))
    channels, patch = config.get("in_channels"), config.get("patch_size")
    if faults or not isinstance(channels, int) or not isinstance(patch, list):
        told = "; ".join(faults) or "it lacks in_channels or patch_size"
        raise InvalidCheckpoint(f"the configuration in {str(folder)!r} does not build: {told}")
    sizes = cast("list[int]", patch)
    if len(sizes) != 3 or min(channels, *sizes) < 1:
        raise InvalidCheckpoint(
            f"{str(folder)!r}: in_channels is {channels}, patch_size {sizes}; expected at least 1 "
            "and three sizes of at least 1"
        )
    numbers = [
        config.get(name)
        for name in ("num_attention_heads", "attention_head_dim", "ffn_dim", "num_layers")
    ]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise InvalidCheckpoint(
            f"{str(folder)!r}: heads, head_dim, ffn_dim, num_layers are {numbers}; expected whole "
            "numbers of at least 1"
        )
    heads, head_dim, ffn_dim, num_layers = cast("list[int]", numbers)
    return TransformerSizes(
        channels, (sizes[0], sizes[1], sizes[2]), heads * head_dim, ffn_dim, num_layers
    )


def load_text_encoder(folder: Path) -> UMT5EncoderModel:
    """Load the text encoder in float32; raises InvalidCheckpoint on any missing or extra key."""
    state = _read_state(_existing(folder) / TEXT_ENCODER_WEIGHTS)
    try:
        with loading():
            config = UMT5Config.from_pretrained(folder, local_files_only=True)
            text_encoder = UMT5EncoderModel(config)
    except Exception as error:
        raise _does_not_build(folder, error) from error
    if "shared.weight" in state:
        state[_TIED] = state["shared.weight"]
    _load_state(text_encoder, state, folder)
    return text_encoder.eval().requires_grad_(False)


def _save_state(state: Mapping[str, Tensor], file: Path, dtype: torch.dtype) -> None:
    tensors = {name: value.to(dtype).contiguous() for name, value in state.items()}
    save_file(tensors, file, metadata={"format": "pt"})


def _read_state(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(_existing(file))
    except (OSError, SafetensorError) as error:
        raise InvalidCheckpoint(f"{str(file)!r} cannot be read: {error}") from error


def _load_state(module: nn.Module, state: Mapping[str, Tensor], folder: Path) -> None:
    try:
        module.load_state_dict(state, strict=True)  # copies, so float16 becomes float32
    except RuntimeError as error:
        raise InvalidCheckpoint(
            f"the weights in {str(folder)!r} do not match their configuration: {error}; expected "
            "every key exactly once"
        ) from error
    align_parameters(module)  # moves nothing while torch's own allocator made the copies


def _does_not_build(folder: Path, error: Exception) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"the configuration in {str(folder)!r} does not build: {type(error).__name__}: {error}"
    )


def _existing(path: Path) -> Path:
    if not path.exists():
        raise InvalidCheckpoint(
            f"{str(path)!r} is missing; expected a folder with the components "
            f"{TRANSFORMER!r}, {TEXT_ENCODER!r}, {TOKENIZER!r} and {CODEC!r}"
        )
    return path
