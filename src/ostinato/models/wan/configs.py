"""A Wan folder's component configurations: the facts in them, and the classes that they declare.

Invariant: nothing here reads or makes a weight; modules are built on the meta device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

import torch
from diffusers.configuration_utils import ConfigMixin
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler
from transformers import UMT5Config, UMT5EncoderModel

from ostinato.backend.checkpoint import read_config
from ostinato.errors import InvalidCheckpoint
from ostinato.loop.facts import DenoiserFacts, LatentFacts
from ostinato.loop.sampling import LibrarySampler, LibraryScheduler

TRANSFORMER_CLASS, TEXT_ENCODER_CLASS = "WanTransformer3DModel", "UMT5EncoderModel"
VAE_CLASS = "AutoencoderKLWan"

SCHEDULERS: Mapping[str, type[UniPCMultistepScheduler | FlowMatchEulerDiscreteScheduler]] = (
    MappingProxyType(
        {
            "UniPCMultistepScheduler": UniPCMultistepScheduler,
            "FlowMatchEulerDiscreteScheduler": FlowMatchEulerDiscreteScheduler,
        }
    )
)


def denoiser_facts(folder: Path) -> DenoiserFacts:
    """Read what the denoise loop plans by from the transformer's configuration."""
    config = _full_config(WanTransformer3DModel, _config(folder, TRANSFORMER_CLASS))
    patch_size = tuple(cast("list[int]", config["patch_size"]))
    if len(patch_size) != 3 or patch_size[0] != 1:
        raise InvalidCheckpoint(f"{folder}: patch_size is {list(patch_size)}, expected [1, h, w]")
    return DenoiserFacts(in_channels=cast("int", config["in_channels"]), patch_size=patch_size)


def latent_facts(folder: Path) -> LatentFacts:
    """Read the strides from the VAE's configuration."""
    config = _full_config(AutoencoderKLWan, _config(folder, VAE_CLASS))
    return LatentFacts(
        temporal_stride=cast("int", config["scale_factor_temporal"]),
        spatial_stride=cast("int", config["scale_factor_spatial"]),
        causal=True,
    )


def read_sampler(folder: Path, class_name: str) -> LibrarySampler:
    """Make the sampler of a scheduler folder; raises InvalidCheckpoint."""
    config = _config(folder, class_name, "scheduler_config.json")
    scheduler = _built(folder, SCHEDULERS[class_name].from_config, config, device="cpu")
    return LibrarySampler(cast("LibraryScheduler", scheduler))


def declare_transformer(folder: Path) -> WanTransformer3DModel:
    """Build the transformer that a configuration declares, on the meta device."""
    config = _config(folder, TRANSFORMER_CLASS)
    return cast("WanTransformer3DModel", _built(folder, WanTransformer3DModel.from_config, config))


def declare_vae(folder: Path) -> AutoencoderKLWan:
    """Build the VAE that a configuration declares, on the meta device."""
    config = _config(folder, VAE_CLASS)
    return cast("AutoencoderKLWan", _built(folder, AutoencoderKLWan.from_config, config))


def declare_text_encoder(folder: Path) -> UMT5EncoderModel:
    """Build the text encoder that a configuration declares, on the meta device."""
    config = read_config(folder)
    if config.get("model_type") != "umt5":
        raise InvalidCheckpoint(
            f"{folder} is a {config.get('model_type')!r} text encoder; expected 'umt5'"
        )

    def build(settings: dict[str, object]) -> UMT5EncoderModel:
        return UMT5EncoderModel(cast("UMT5Config", UMT5Config.from_dict(settings)))

    return cast("UMT5EncoderModel", _built(folder, build, config))


def _config(folder: Path, class_name: str, name: str = "config.json") -> Mapping[str, object]:
    config = read_config(folder, name)
    if config.get("_class_name") != class_name:
        raise InvalidCheckpoint(
            f"{folder / name} configures a {config.get('_class_name')!r}, expected {class_name!r}"
        )
    return config


def _full_config(kind: type[ConfigMixin], config: Mapping[str, object]) -> Mapping[str, object]:
    """Fill in what a configuration leaves to the class's defaults."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty} | dict(config)


def _built(
    folder: Path,
    build: Callable[[dict[str, object]], object],
    config: Mapping[str, object],
    device: str = "meta",
) -> object:
    """Build without memory for weights; whatever a class rejects is the checkpoint's fault."""
    try:
        with torch.device(device):
            return build(dict(config))
    except Exception as error:
        raise InvalidCheckpoint(
            f"the configuration in {folder} does not build: {type(error).__name__}: {error}"
        ) from error
