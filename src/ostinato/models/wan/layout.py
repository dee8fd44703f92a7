"""What a Wan folder says of itself: its pipeline index and configurations, no weights.

Invariant: a folder that this module reads without an error is a Wan 2.1 text-to-video pipeline;
the siblings that share its class (Wan 2.2, image to video) need loops of their own and are
refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import nn
from transformers import UMT5EncoderModel

from ostinato.backend.checkpoint import (
    DIFFUSERS_STEM,
    TRANSFORMERS_STEM,
    read_config,
    read_headers,
    require_tensors,
)
from ostinato.errors import InvalidCheckpoint
from ostinato.loop.facts import DenoiserFacts, LatentFacts
from ostinato.models.wan.configs import (
    EULER,
    SCHEDULERS,
    TEXT_ENCODER_CLASS,
    TRANSFORMER_CLASS,
    UNIPC,
    VAE_CLASS,
    declare_text_encoder,
    declare_transformer,
    declare_vae,
    denoiser_facts,
    latent_facts,
    read_sampler,
)

TRANSFORMER, TEXT_ENCODER, TOKENIZER = "transformer", "text_encoder", "tokenizer"
VAE, SCHEDULER = "vae", "scheduler"
PIPELINE = "WanPipeline"

SAMPLER_NAMES: Mapping[str, str] = MappingProxyType({UNIPC: "unipc", EULER: "flow_match_euler"})
_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        TRANSFORMER: TRANSFORMER_CLASS,
        TEXT_ENCODER: TEXT_ENCODER_CLASS,
        VAE: VAE_CLASS,
    }
)
_TOKENIZER_FILES = ("tokenizer.json", "spiece.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class WanFacts:
    """What the card is made from.

    rope_max_seq_len: patches that the rotary table holds on each of the axes T, H, W.
    """

    scheduler: str
    denoiser: DenoiserFacts
    latents: LatentFacts
    rope_max_seq_len: int
    num_train_timesteps: int


def inspect_folder(folder: Path) -> WanFacts:
    """Check every file of a folder, weights by their headers alone.

    Raises InvalidCheckpoint or UnsafeCheckpoint.
    """
    scheduler = _read_index(folder)
    _require_tokenizer(folder / TOKENIZER)
    sampler = read_sampler(folder / SCHEDULER, scheduler)
    denoiser, latents = denoiser_facts(folder / TRANSFORMER), latent_facts(folder / VAE)
    transformer = declare_transformer(folder / TRANSFORMER)
    vae = declare_vae(folder / VAE)
    text_encoder = declare_text_encoder(folder / TEXT_ENCODER)
    _require_fitting(folder, transformer, vae, text_encoder)
    _require_weights(folder / TRANSFORMER, DIFFUSERS_STEM, transformer)
    _require_weights(folder / VAE, DIFFUSERS_STEM, vae)
    _require_weights(folder / TEXT_ENCODER, TRANSFORMERS_STEM, text_encoder)
    return WanFacts(
        scheduler=scheduler,
        denoiser=denoiser,
        latents=latents,
        rope_max_seq_len=int(transformer.config["rope_max_seq_len"]),
        num_train_timesteps=sampler.num_train_timesteps,
    )


def _read_index(folder: Path) -> str:
    """Return the class of the scheduler; those of the other components are fixed."""
    index = read_config(folder, "model_index.json")
    refusal = next(_refusals(index), None)
    if refusal is not None:
        raise InvalidCheckpoint(f"{folder} {refusal}")
    for name, expected in _CLASSES.items():
        if (found := _class_of(index, name)) != expected:
            raise InvalidCheckpoint(f"{folder}: {name} is a {found!r}, expected {expected!r}")
    scheduler = _class_of(index, SCHEDULER)
    if scheduler is None or scheduler not in SCHEDULERS:
        raise InvalidCheckpoint(
            f"{folder}: scheduler is a {scheduler!r}; served: {', '.join(sorted(SCHEDULERS))}"
        )
    return scheduler


def _refusals(index: Mapping[str, object]) -> Iterator[str]:
    kind = index.get("_class_name")
    if kind != PIPELINE:
        yield f"is a {kind!r}; only {PIPELINE!r} (Wan 2.1 text to video) is served"
    if _class_of(index, "transformer_2") is not None or index.get("boundary_ratio") is not None:
        yield "is a two-expert pipeline (Wan 2.2 A14B), which needs a switch between transformers"
    if index.get("expand_timesteps"):
        yield "takes a timestep for each token (Wan 2.2 5B), which is not served"
    if _class_of(index, "image_encoder") is not None:
        yield "has an image encoder (image to video), which is not served"


def _class_of(index: Mapping[str, object], name: str) -> str | None:
    """Return the class that model_index.json gives a component, None where it gives none."""
    entry = index.get(name)
    if not isinstance(entry, list) or len(cast("list[object]", entry)) != 2:
        return None
    class_name = cast("list[object]", entry)[1]
    return class_name if isinstance(class_name, str) else None


def _require_tokenizer(folder: Path) -> None:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise InvalidCheckpoint(f"{folder} has none of {', '.join(_TOKENIZER_FILES)}")


def _require_fitting(
    folder: Path,
    transformer: WanTransformer3DModel,
    vae: AutoencoderKLWan,
    text_encoder: UMT5EncoderModel,
) -> None:
    """Hold the components against one another."""
    network, codec = transformer.config, vae.config
    channels = (network["in_channels"], network["out_channels"], codec["z_dim"])
    statistics = (len(codec["latents_mean"]), len(codec["latents_std"]))
    width, text_width = network["text_dim"], text_encoder.config.d_model
    faults = {
        f"transformer and VAE disagree about latent channels {channels}": len(set(channels)) > 1,
        f"latents_mean and latents_std have {statistics} entries": (
            set(statistics) != {codec["z_dim"]}
        ),
        "the transformer takes an image (image to video), which is not served": (
            network["image_dim"] is not None or network["added_kv_proj_dim"] is not None
        ),
        "the VAE packs pixels into patches (Wan 2.2), which is not served": (
            codec["is_residual"] or codec["patch_size"] is not None
        ),
        f"the transformer reads text of width {width}, the text encoder gives {text_width}": (
            width != text_width
        ),
    }
    told = [fault for fault, found in faults.items() if found]
    if told:
        raise InvalidCheckpoint(f"{folder}: {'; '.join(told)}")


def _require_weights(folder: Path, stem: str, declared: nn.Module) -> None:
    shapes = {name: tuple(t.shape) for name, t in declared.state_dict().items()}
    tied = cast("Mapping[str, str]", getattr(declared, "all_tied_weights_keys", None) or {})
    ignored = getattr(declared, "_keys_to_ignore_on_load_unexpected", None) or ()
    require_tensors(folder, read_headers(folder, stem), shapes, optional=tied, ignored=ignored)
