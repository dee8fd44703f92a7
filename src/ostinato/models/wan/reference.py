"""A small Wan folder in float64 numpy: slow, and the value that float32 and bfloat16 aim at.

The components take and give torch tensors where the served ones do, float64 in their place, so that
the loop and the program are the same. Nothing of the served model imports them.
"""

# B batch, C channel, T latent frame, H W latent, L token, D width

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from transformers import PreTrainedTokenizerBase

from ostinato.backend.finite import require_finite
from ostinato.backend.reference.arrays import Array
from ostinato.backend.reference.component import (
    ReferenceComponent,
    require_reference,
    to_array,
    to_tensor,
)
from ostinato.backend.reference.derive import derive_reference
from ostinato.backend.reference.umt5 import UMT5Encoder, read_umt5
from ostinato.backend.reference.wan import ReferenceWan
from ostinato.backend.reference.wan_weights import read_wan
from ostinato.card import ComponentSpec, ModelSource, PrecisionSpec
from ostinato.loop.facts import DenoiserFacts, LatentFacts
from ostinato.models.wan.components import MAX_PROMPT_TOKENS, cut_prompt_advice
from ostinato.models.wan.configs import denoiser_facts, latent_facts, read_sampler
from ostinato.models.wan.layout import SCHEDULER, TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from ostinato.models.wan.loading import load_tokenizer
from ostinato.models.wan.open import open_wan
from ostinato.models.wan.reference_sampler import ReferenceSampler
from ostinato.models.wan.reference_vae import decode
from ostinato.models.wan.reference_vae_weights import VaeWeights, read_vae

_ADAPTERS: Mapping[str, str] = MappingProxyType(
    {
        TEXT_ENCODER: f"{__name__}:ReferenceTextEncoder",
        TRANSFORMER: f"{__name__}:ReferenceTransformer",
        VAE: f"{__name__}:ReferenceVae",
        SCHEDULER: f"{__name__}:ReferenceScheduler",
    }
)


class ReferenceTextEncoder(ReferenceComponent):
    """Op `encode`, as `WanTextEncoder`."""

    def __init__(self, encoder: UMT5Encoder, tokenizer: PreTrainedTokenizerBase) -> None:
        """Take the weights and the tokenizer, which computes nothing that could be rounded."""
        super().__init__({"encode": self.encode})
        self._encoder = encoder
        self._tokenizer = tokenizer

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> None:
        """No loop plans by the text encoder."""

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Read the encoder and the sibling tokenizer; raises InvalidCard unless in float64."""
        require_reference(spec, precision)
        return cls(read_umt5(folder / spec.subfolder), load_tokenizer(folder / TOKENIZER))

    def encode(self, text: str) -> Mapping[str, object]:
        """Return prompt_embeds float64 [1,512,D], zero beyond the prompt; notes when it was cut."""
        prompt = prompt_clean(text)
        tokens = self._tokenizer(
            [prompt],
            padding="max_length",
            max_length=MAX_PROMPT_TOKENS,
            truncation=True,
            return_tensors="np",
        )
        ids_BL, mask_BL = (
            np.asarray(tokens[name], dtype=np.int64) for name in ("input_ids", "attention_mask")
        )
        hidden_BLD = self._encoder.encode(ids_BL, mask_BL, self.emit)
        # WanPipeline keeps as many rows as there are tokens, wherever the padding stands.
        kept = np.arange(MAX_PROMPT_TOKENS) < mask_BL.sum()
        length = len(self._tokenizer(prompt, verbose=False)["input_ids"])
        return {
            "prompt_embeds": to_tensor(hidden_BLD * kept[:, None]),
            "notes": cut_prompt_advice(length),
        }


class ReferenceTransformer(ReferenceComponent):
    """The denoiser. Op `predict`, as `WanTransformer`."""

    def __init__(self, network: ReferenceWan) -> None:
        """Take the network."""
        super().__init__({"predict": self.predict})
        self._network = network

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> DenoiserFacts:
        """Read channels and patch size from the configuration."""
        return denoiser_facts(folder / spec.subfolder)

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Read the network; raises InvalidCard unless in float64."""
        require_reference(spec, precision)
        return cls(ReferenceWan(*read_wan(folder / spec.subfolder)))

    def predict(
        self, latents: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> Mapping[str, object]:
        """Return the flow velocity float64 [B,C,T,H,W].

        latents: [B,C,T,H,W]. timestep: a scalar. prompt_embeds: [B,L,D].
        """
        network, latents_BCTHW = self._network, to_array(latents)
        batch, _, frames, height, width = latents_BCTHW.shape
        hidden_BLD = network.embed_patches(latents_BCTHW, self.emit)
        temb_BD, modulation_B6D = network.embed_timesteps(
            np.full(batch, float(timestep)), self.emit
        )
        text_kv = network.encode_text(to_array(prompt_embeds), self.emit)
        hidden_BLD, _ = network.blocks(
            hidden_BLD,
            modulation_B6D[:, None],
            network.rotary(np.arange(frames, dtype=np.float64), height, width),
            text_kv,
            (None,) * len(text_kv),
            self.emit,
        )
        velocity = network.head(hidden_BLD, temb_BD[:, None], height, width, self.emit)
        return {"prediction": to_tensor(velocity)}


class ReferenceVae(ReferenceComponent):
    """The codec's decoder side. Op `decode`, as `WanVae`."""

    def __init__(self, weights: VaeWeights) -> None:
        """Take the weights of the decoder."""
        super().__init__({"decode": self.decode})
        self._weights = weights

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> LatentFacts:
        """Read the strides from the configuration."""
        return latent_facts(folder / spec.subfolder)

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Read the decoder; raises InvalidCard unless in float64."""
        require_reference(spec, precision)
        return cls(read_vae(folder / spec.subfolder))

    def decode(self, latents: torch.Tensor) -> Mapping[str, object]:
        """Return frames uint8 [T,H,W,3] of latents [1,C,T,H,W]; raises NonFinite."""
        return {"frames": np.rint(self.pixels(latents) * 255.0).astype(np.uint8)}

    def pixels(self, latents: torch.Tensor) -> Array:
        """Return frames float64 [T,H,W,3] in [0,1] of latents [1,C,T,H,W]; raises NonFinite."""
        frames_BCTHW = decode(self._weights, to_array(latents), self.emit)
        require_finite(to_tensor(frames_BCTHW), "frames")
        return np.moveaxis(np.clip(frames_BCTHW[0] / 2.0 + 0.5, 0.0, 1.0), 0, -1)


class ReferenceScheduler(ReferenceComponent):
    """The sampler's configuration; facts only, as `WanScheduler`."""

    def __init__(self) -> None:
        """There are no operations."""
        super().__init__({})

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> ReferenceSampler:
        """Return the sampler that the folder configures."""
        return ReferenceSampler.of(read_sampler(folder / spec.subfolder, spec.class_name))

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """There are no weights; raises InvalidCard unless in float64."""
        require_reference(spec, precision)
        return cls()


def open_reference(folder: Path) -> ModelSource:
    """Open a Wan folder in float64; raises as `open_wan` does."""
    return reference_of(open_wan(folder))


def reference_of(source: ModelSource) -> ModelSource:
    """Derive the float64 reference of a Wan folder: the same files, other components."""
    return derive_reference(source, _ADAPTERS)
