"""The components of Wan 2.1: the library's own modules behind named operations.

Invariant: an operation keeps nothing on its module, so requests may interleave at any call.
"""

# B batch, C channel, T latent frame, H W latent, L token, D width

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan, WanCausalConv3d
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from diffusers.video_processor import VideoProcessor
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

from ostinato.backend.batch_rules import StackRules
from ostinato.backend.checkpoint import DIFFUSERS_STEM
from ostinato.backend.estimate import WanWork, shape_of
from ostinato.backend.estimate_conv import WanVaeWork
from ostinato.backend.finite import require_finite
from ostinato.backend.nets.umt5 import UMT5TextEncoder
from ostinato.backend.nets.wan_stack import WanSample, can_stack, stacked_forward
from ostinato.backend.operations import Inputs, Operations
from ostinato.backend.taps import Tap, module_taps, wan_transformer_taps
from ostinato.card import ComponentSpec, PrecisionSpec
from ostinato.loop.facts import DenoiserFacts, LatentFacts
from ostinato.loop.sampling import LibrarySampler
from ostinato.models.wan.configs import denoiser_facts, latent_facts, read_sampler
from ostinato.models.wan.layout import TOKENIZER
from ostinato.models.wan.loading import load_module, load_tokenizer
from ostinato.models.wan.text import MAX_PROMPT_TOKENS, cut_prompt_advice, tokenize
from ostinato.work import OpWork


class WanTextEncoder(UMT5TextEncoder[PreTrainedTokenizerBase]):
    """UMT5 with the tokenizer that its vocabulary belongs to. Op `encode`."""

    PROMPT_TOKENS = MAX_PROMPT_TOKENS

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Load the encoder in the card's precision, and the sibling tokenizer folder."""
        encoder = load_module(UMT5EncoderModel, folder / spec.subfolder, precision.weights)
        return cls(encoder, load_tokenizer(folder / TOKENIZER))

    def encode(self, text: str) -> dict[str, object]:
        """Return prompt_embeds [1,512,D], zero beyond the prompt; notes when it was cut."""
        ids_BL, mask_BL = tokenize(self.tokenizer, [text])
        hidden_states = self.module(ids_BL, mask_BL).last_hidden_state.to(self.module.dtype)
        length = int(mask_BL.gt(0).sum())
        prompt_embeds_BLD = torch.zeros_like(hidden_states)
        prompt_embeds_BLD[:, :length] = hidden_states[:, :length]
        # Counting again costs as much as tokenizing, and only a full prompt can have been cut.
        cut = length == MAX_PROMPT_TOKENS
        notes = cut_prompt_advice(self.tokenizer, text) if cut else ()
        return {"prompt_embeds": prompt_embeds_BLD, "notes": notes}


class WanTransformer(Operations):
    """The denoiser. Op `predict`."""

    OPS = ("predict",)
    STEM = DIFFUSERS_STEM

    def __init__(self, module: WanTransformer3DModel) -> None:
        """Take the live module; weights aligned."""
        self.module = module
        self._work = WanWork.of(module)

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> DenoiserFacts:
        """Read channels and patch size from the configuration."""
        return denoiser_facts(folder / spec.subfolder)

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Load in the card's precision; the library keeps norms and tables in float32."""
        return cls(load_module(WanTransformer3DModel, folder / spec.subfolder, precision.weights))

    def estimate(self, op: str, inputs: Inputs) -> OpWork:
        """Estimate a call from its shapes; see `ostinato.loop.cost`."""
        self.op(op)
        samples, *_ = (*shape_of(inputs["latents"]), 0)
        _, text, *_ = (*shape_of(inputs["prompt_embeds"]), 0, 0)
        return self._work.predict(samples, self._work.tokens(inputs["latents"]), text)

    @property
    def stacked_ops(self) -> Mapping[str, frozenset[str]]:
        """Ops that take many requests at once, each at a step of its own."""
        return {"predict": frozenset()}

    def op_stacked(
        self, name: str, rules: StackRules
    ) -> Callable[[Sequence[Inputs]], Sequence[Mapping[str, object]] | None]:
        """Return a stackable op over the inputs of many calls; see `ostinato.loop.batch`."""
        self.op(name)  # raises for one that is not there

        def run(items: Sequence[Inputs]) -> Sequence[Mapping[str, object]] | None:
            samples = [self._sample(**inputs) for inputs in items]
            if not can_stack(self.module, samples, rules):
                return None
            return [{"prediction": v} for v in stacked_forward(self.module, samples)]

        return run

    def observe(self, tap: Tap) -> AbstractContextManager[None]:
        """Look into the network; see `ostinato.loop.observe`."""
        names = wan_transformer_taps(len(self.module.blocks), whole_blocks=True)
        return module_taps(self.module, names, tap)

    def predict(
        self, latents: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the flow velocity [B,C,T,H,W] in the network's dtype.

        latents: [B,C,T,H,W]. timestep: a scalar in the sampler's dtype. prompt_embeds: [B,L,D].
        """
        sample = self._sample(latents, timestep, prompt_embeds)
        prediction = self.module(
            hidden_states=sample.latents,
            timestep=sample.timestep,
            encoder_hidden_states=sample.prompt_embeds,
            return_dict=False,
        )[0]
        return {"prediction": prediction}

    def _sample(
        self, latents: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> WanSample:
        dtype = self.module.dtype
        return WanSample(
            latents.to(dtype), timestep.expand(latents.shape[0]), prompt_embeds.to(dtype)
        )


class WanVae(Operations):
    """The codec's decoder side. Op `decode`."""

    OPS = ("decode",)
    STEM = DIFFUSERS_STEM

    def __init__(self, module: AutoencoderKLWan) -> None:
        """Take the live module; weights aligned."""
        self.module = module
        self._num_cached_convs = sum(
            isinstance(m, WanCausalConv3d) for m in module.decoder.modules()
        )
        self._work = WanVaeWork.of(module)
        self._processor = VideoProcessor(vae_scale_factor=module.config["scale_factor_spatial"])

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> LatentFacts:
        """Read the strides from the configuration."""
        return latent_facts(folder / spec.subfolder)

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Load in float32 whatever the card's precision, as the publisher serves it."""
        return cls(load_module(AutoencoderKLWan, folder / spec.subfolder, "float32"))

    def estimate(self, op: str, inputs: Inputs) -> OpWork:
        """Estimate a call from its shapes; see `ostinato.loop.cost`."""
        self.op(op)
        return self._work.decode(inputs["latents"])

    def observe(self, tap: Tap) -> AbstractContextManager[None]:
        """Look into the decoder, once for each latent frame; see `ostinato.loop.observe`."""
        blocks = [f"decoder.up_blocks.{i}" for i in range(len(self.module.decoder.up_blocks))]
        names = ("post_quant_conv", "decoder.conv_in", "decoder.mid_block", *blocks)
        return module_taps(self.module, (*names, "decoder.conv_out"), tap)

    def decode(self, latents: torch.Tensor) -> dict[str, NDArray[np.uint8]]:
        """Return frames uint8 [T,H,W,3] of latents [1,C,T,H,W].

        Raises NonFinite when a pixel is NaN or infinite.
        """
        return {"frames": (self.pixels(latents) * 255).round().astype(np.uint8)}

    def pixels(self, latents: torch.Tensor) -> NDArray[np.float32]:
        """Return frames float32 [T,H,W,3] in [0,1] of latents [1,C,T,H,W]."""
        sample = self._decoded(self._denormalized(latents))
        return np.asarray(self._processor.postprocess_video(sample, output_type="np")[0])

    def _denormalized(self, latents: torch.Tensor) -> torch.Tensor:
        """Undo the latent statistics; by two divisions, as WanPipeline does, for equal bits."""
        latents, config = latents.to(self.module.dtype), self.module.config
        shape = (1, config["z_dim"], 1, 1, 1)
        # In float32 first, as WanPipeline does, whatever the process's default dtype is.
        mean, std = (
            torch.tensor(config[name], dtype=torch.float32).view(shape).to(latents)
            for name in ("latents_mean", "latents_std")
        )
        return latents / (1.0 / std) + mean

    def _decoded(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode frame by frame as the library does, with the feature cache held by the call.

        `AutoencoderKLWan.decode` keeps that cache on the module: two decodes at a time would mix
        their features, and a failed one would leave its memory behind.
        """
        hidden_states = self.module.post_quant_conv(latents)
        features: list[object] = [None] * self._num_cached_convs
        frames = [
            self.module.decoder(
                hidden_states[:, :, index : index + 1],
                feat_cache=features,
                feat_idx=[0],
                first_chunk=index == 0,
            )
            for index in range(latents.shape[2])
        ]
        return require_finite(torch.cat(frames, 2), "frames").clamp(min=-1.0, max=1.0)


class WanScheduler(Operations):
    """The sampler's configuration; facts only, since each request steps an instance of its own."""

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> LibrarySampler:
        """Return the sampler that the folder configures."""
        return read_sampler(folder / spec.subfolder, spec.class_name)

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """There are no weights."""
        return cls()
