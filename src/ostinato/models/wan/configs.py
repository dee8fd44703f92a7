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
from ostinato.backend.declared import config_faults
from ostinato.backend.loading import loading
from ostinato.errors import InvalidCheckpoint
from ostinato.loop.facts import (
    DenoiserFacts,
    LatentFacts,
    decode_bytes_per_pixel,
    forward_bytes_per_token,
)
from ostinato.loop.sampling import LibrarySampler, LibraryScheduler

TRANSFORMER_CLASS, TEXT_ENCODER_CLASS = "WanTransformer3DModel", "UMT5EncoderModel"
VAE_CLASS = "AutoencoderKLWan"
UNIPC, EULER = "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"

# Enough for a middle step; a schedule costs microseconds.
_TRIED_STEPS = 4

SCHEDULERS: Mapping[str, type[UniPCMultistepScheduler | FlowMatchEulerDiscreteScheduler]] = (
    MappingProxyType({UNIPC: UniPCMultistepScheduler, EULER: FlowMatchEulerDiscreteScheduler})
)


def denoiser_facts(folder: Path) -> DenoiserFacts:
    """Read what the denoise loop plans by from the transformer's configuration."""
    config = _full_config(folder, WanTransformer3DModel, TRANSFORMER_CLASS)
    patch_size = tuple(cast("list[int]", config["patch_size"]))
    if len(patch_size) != 3 or patch_size[0] != 1 or min(patch_size) < 1:
        raise InvalidCheckpoint(f"{folder}: patch_size is {list(patch_size)}, expected [1, h, w]")
    channels = cast("int", config["in_channels"])
    if channels < 1:
        raise InvalidCheckpoint(f"{folder}: in_channels is {channels}, expected at least 1")
    heads, head_dim = (
        cast("int", config[n]) for n in ("num_attention_heads", "attention_head_dim")
    )
    return DenoiserFacts(
        in_channels=channels,
        patch_size=patch_size,
        peak_bytes_per_token=forward_bytes_per_token(
            heads * head_dim, cast("int", config["ffn_dim"])
        ),
    )


def latent_facts(folder: Path) -> LatentFacts:
    """Work out the strides that the VAE's layers have, and hold the stated ones against them.

    Each stage but the last halves height and width, and time where `temperal_downsample` says so.
    """
    config = _full_config(folder, AutoencoderKLWan, VAE_CLASS)
    stages, halves = (cast("list[int]", config[n]) for n in ("dim_mult", "temperal_downsample"))
    if len(halves) != len(stages) - 1:
        raise InvalidCheckpoint(
            f"{folder}: temperal_downsample has {len(halves)} entries for {len(stages)} stages"
        )
    strides = {"scale_factor_temporal": 2 ** sum(halves), "scale_factor_spatial": 2 ** len(halves)}
    for name, stride in strides.items():
        # WanPipeline reads these names, so a folder that states others is read as others.
        if config[name] != stride:
            raise InvalidCheckpoint(
                f"{folder}: {name} is {config[name]!r}, but the layers have a stride of {stride}"
            )
    if any(std <= 0 for std in cast("list[float]", config["latents_std"])):
        raise InvalidCheckpoint(f"{folder}: latents_std has an entry that is not above 0")
    return LatentFacts(
        temporal_stride=strides["scale_factor_temporal"],
        spatial_stride=strides["scale_factor_spatial"],
        causal=True,
        peak_bytes_per_pixel=decode_bytes_per_pixel(cast("int", config["base_dim"])),
    )


def read_sampler(folder: Path, class_name: str) -> LibrarySampler:
    """Make the sampler of a scheduler folder; raises InvalidCheckpoint."""
    config = _config(folder, class_name, "scheduler_config.json")
    kind = SCHEDULERS[class_name]
    scheduler = _built(folder, kind.from_config, config, constructor=kind, device="cpu")
    sampler = LibrarySampler(cast("LibraryScheduler", scheduler))
    _require_schedule(folder, sampler)
    return sampler


def _require_schedule(folder: Path, sampler: LibrarySampler) -> None:
    """Make a short schedule: only then does the library read most of its settings."""
    shift = sampler.flow_shift
    if shift is not None and not shift > 0:
        raise InvalidCheckpoint(f"{folder}: the flow shift is {shift}, expected above 0")
    try:
        sigmas = sampler.schedule(_TRIED_STEPS, None).sigmas.double()
    except Exception as error:
        raise _does_not_build(folder, error) from error
    # Finite, falling, from noise towards data.
    if not (bool((sigmas.diff() < 0).all()) and 0 <= float(sigmas[-1]) < float(sigmas[0]) <= 1):
        raise InvalidCheckpoint(
            f"{folder}: the schedule of {_TRIED_STEPS} steps has sigmas {sigmas.tolist()}; "
            "expected falling ones between 1 and 0"
        )


def declare_transformer(folder: Path) -> WanTransformer3DModel:
    """Build the transformer that a configuration declares, on the meta device."""
    config = _config(folder, TRANSFORMER_CLASS)
    kind = WanTransformer3DModel
    return cast("WanTransformer3DModel", _built(folder, kind.from_config, config, constructor=kind))


def declare_vae(folder: Path) -> AutoencoderKLWan:
    """Build the VAE that a configuration declares, on the meta device."""
    config = _config(folder, VAE_CLASS)
    kind = AutoencoderKLWan
    return cast("AutoencoderKLWan", _built(folder, kind.from_config, config, constructor=kind))


def declare_text_encoder(folder: Path) -> UMT5EncoderModel:
    """Build the text encoder that a configuration declares, on the meta device."""
    config = read_config(folder)
    if config.get("model_type") != "umt5":
        raise InvalidCheckpoint(
            f"{folder} is a {config.get('model_type')!r} text encoder; expected 'umt5'"
        )

    def build(settings: dict[str, object]) -> UMT5EncoderModel:
        return UMT5EncoderModel(cast("UMT5Config", UMT5Config.from_dict(settings)))

    return cast("UMT5EncoderModel", _built(folder, build, config, constructor=UMT5Config))


def _config(folder: Path, class_name: str, name: str = "config.json") -> Mapping[str, object]:
    config = read_config(folder, name)
    if config.get("_class_name") != class_name:
        raise InvalidCheckpoint(
            f"{folder / name} configures a {config.get('_class_name')!r}, expected {class_name!r}"
        )
    return config


def _full_config(folder: Path, kind: type[ConfigMixin], class_name: str) -> Mapping[str, object]:
    """Read a configuration, check its types, fill in what it leaves to the class's defaults."""
    config = _config(folder, class_name)
    _require_types(folder, kind, config)
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty} | dict(config)


def _require_types(
    folder: Path, constructor: Callable[..., object], config: Mapping[str, object]
) -> None:
    faults = tuple(config_faults(constructor, config))
    if faults:
        raise InvalidCheckpoint(
            f"the configuration in {folder} does not build: {'; '.join(faults)}"
        )


def _built(
    folder: Path,
    build: Callable[[dict[str, object]], object],
    config: Mapping[str, object],
    *,
    constructor: Callable[..., object],
    device: str = "meta",
) -> object:
    """Build without memory for weights; whatever a class rejects is the checkpoint's fault."""
    _require_types(folder, constructor, config)
    try:
        with loading(), torch.device(device):
            return build(dict(config))
    except Exception as error:
        raise _does_not_build(folder, error) from error


def _does_not_build(folder: Path, error: Exception) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"the configuration in {folder} does not build: {type(error).__name__}: {error}"
    )
