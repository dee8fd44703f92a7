"""A small Wan folder in float64 numpy: slow, and the value that float32 and bfloat16 aim at.

The components take and give torch tensors where the served ones do, float64 in their place, so that
the loop and the program are the same. Nothing of the served model imports them.
"""

# B batch, C channel, T latent frame, H W latent, L token, D width

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch

from ostinato.backend.finite import require_finite
from ostinato.backend.reference.adapters import ReferenceDenoiser, ReferenceUMT5
from ostinato.backend.reference.arrays import Array
from ostinato.backend.reference.component import ReferenceComponent, to_array, to_tensor
from ostinato.backend.reference.derive import derive_reference
from ostinato.backend.reference.umt5 import read_umt5
from ostinato.card import ComponentSpec, ModelSource
from ostinato.models.wan.components import WanScheduler, WanTransformer, WanVae
from ostinato.models.wan.layout import SCHEDULER, TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from ostinato.models.wan.loading import load_tokenizer
from ostinato.models.wan.reference_sampler import ReferenceSampler
from ostinato.models.wan.reference_vae import decode
from ostinato.models.wan.reference_vae_weights import VaeWeights, read_vae
from ostinato.models.wan.text import cut_prompt_advice, tokenize


class ReferenceTextEncoder(ReferenceUMT5):
    """Op `encode`, as `WanTextEncoder`."""

    @classmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> Self:
        """Read the encoder and the sibling tokenizer; raises InvalidCheckpoint."""
        tokenizer = load_tokenizer(folder / TOKENIZER)
        encoder = read_umt5(folder / spec.subfolder)
        return cls(encoder, partial(tokenize, tokenizer), partial(cut_prompt_advice, tokenizer))


class ReferenceTransformer(ReferenceDenoiser):
    """The denoiser. Op `predict`, as `WanTransformer`."""

    OPS = ("predict",)
    read_facts = staticmethod(WanTransformer.read_facts)

    def predict(
        self, latents: torch.Tensor, timestep: torch.Tensor, prompt_embeds: torch.Tensor
    ) -> Mapping[str, object]:
        """Return the flow velocity float64 [B,C,T,H,W].

        latents: [B,C,T,H,W]. timestep: a scalar. prompt_embeds: [B,L,D].
        """
        network, latents_BCTHW = self.network, to_array(latents)
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

    OPS = ("decode",)
    read_facts = staticmethod(WanVae.read_facts)

    def __init__(self, weights: VaeWeights) -> None:
        """Take the weights of the decoder."""
        super().__init__()
        self._weights = weights

    @classmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> Self:
        """Read the decoder; raises InvalidCheckpoint."""
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

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> ReferenceSampler:
        """Return the sampler that the folder configures."""
        return ReferenceSampler.of(WanScheduler.read_facts(folder, spec))

    @classmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> Self:
        """There are no weights."""
        return cls()


def reference_of(source: ModelSource) -> ModelSource:
    """Derive the float64 reference of a Wan folder: the same files, other components."""
    adapters: Mapping[str, type[ReferenceComponent]] = {
        TEXT_ENCODER: ReferenceTextEncoder,
        TRANSFORMER: ReferenceTransformer,
        VAE: ReferenceVae,
        SCHEDULER: ReferenceScheduler,
    }
    return derive_reference(source, adapters)
