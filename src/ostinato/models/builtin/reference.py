"""The built-in model in float64 numpy: slow, and the value that float32 and bfloat16 aim at.

It is a model of its own, `builtin-reference`, that somebody asks for by name; nothing of the served
model imports it or falls back to it. Its components take and give torch tensors where the served
ones do, float64 in place of float32, so that the loops and the K/V pages are the same. What a
request fixes before the first step, the initial noise and the sigmas, stays in float32 as drawn.
"""

# B branch, C channel, T latent frame, H W latent, L token, N head, E head width, D width

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from ostinato.backend.nets.causal_wan import EXACT_ROWS
from ostinato.backend.nets.kv import ContextKV, LayerKV, TextKV
from ostinato.backend.reference.adapters import ReferenceDenoiser, ReferenceUMT5
from ostinato.backend.reference.arrays import Array, KeyValue
from ostinato.backend.reference.component import ReferenceComponent, to_array, to_tensor
from ostinato.backend.reference.derive import derive_reference
from ostinato.backend.reference.umt5 import read_umt5
from ostinato.backend.reference.wan import OwnKV
from ostinato.card import ComponentSpec, ModelSource
from ostinato.models.builtin.card import open_builtin
from ostinato.models.builtin.components import BuiltinCodec, BuiltinTransformer
from ostinato.models.builtin.layout import CODEC, TEXT_ENCODER, TOKENIZER, TRANSFORMER
from ostinato.models.builtin.prompt_words import unknown_words_advice
from ostinato.models.builtin.reference_codec import ReferenceDecoder, read_decoder
from ostinato.models.builtin.text import load_tokenizer, tokenize


class ReferenceTextEncoder(ReferenceUMT5):
    """Op `encode`: a prompt to embeddings, as `BuiltinTextEncoder`."""

    @classmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> Self:
        """Read the encoder and the sibling tokenizer; raises InvalidCheckpoint."""
        tokenizer = load_tokenizer(folder / TOKENIZER)
        encoder = read_umt5(folder / spec.subfolder)
        return cls(encoder, partial(tokenize, tokenizer), partial(unknown_words_advice, tokenizer))


class _Block(NamedTuple):
    """A block of every branch: latents [B,C,T,H,W], timesteps [B,T], positions [T]."""

    latents: Array
    timesteps: Array
    positions: Array


class ReferenceTransformer(ReferenceDenoiser):
    """The causal denoiser: ops `encode_text`, `predict`, `store`, as `BuiltinTransformer`."""

    OPS = ("encode_text", "predict", "store")
    read_facts = staticmethod(BuiltinTransformer.read_facts)

    def encode_text(self, prompt_embeds: tuple[torch.Tensor, ...]) -> Mapping[str, object]:
        """Compute every layer's cross-attention K/V of all branches, once per request."""
        stacked = np.concatenate([to_array(embeds) for embeds in prompt_embeds])
        layers = self.network.encode_text(stacked, self.emit)
        return {"text_kv": tuple(TextKV(*map(to_tensor, layer)) for layer in layers)}

    def predict(
        self,
        latents: torch.Tensor,
        timestep: torch.Tensor,
        first_frame: torch.Tensor,
        text_kv: tuple[TextKV, ...],
        context: tuple[ContextKV, ...] | None,
    ) -> Mapping[str, object]:
        """Predict the flow velocity of every branch, float64 [B,C,T,H,W]."""
        block = _block(latents, float(timestep), first_frame, text_kv)
        temb_RD, hidden_BLD, _ = self._run(block, text_kv, context)
        temb_BTD = temb_RD.reshape(*block.timesteps.shape, -1)
        height, width = latents.shape[-2:]
        velocity = self.network.head(hidden_BLD, temb_BTD, height, width, self.emit)
        return {"prediction": to_tensor(velocity)}

    def store(
        self,
        latents: torch.Tensor,
        first_frame: torch.Tensor,
        text_kv: tuple[TextKV, ...],
        context: tuple[ContextKV, ...] | None,
    ) -> Mapping[str, object]:
        """Compute a finished block's clean K/V: a pass at timestep 0 whose output is not used."""
        _, _, layers = self._run(_block(latents, 0.0, first_frame, text_kv), text_kv, context)
        return {"layers": tuple(LayerKV(*map(to_tensor, layer)) for layer in layers)}

    def _run(
        self,
        block: _Block,
        text_kv: tuple[TextKV, ...],
        context: tuple[ContextKV, ...] | None,
    ) -> tuple[Array, Array, tuple[OwnKV, ...]]:
        """Run the layers; returns temb [B T,D], hidden states [B,L,D] and the new K/V.

        Values are emitted as the served network computes them: a sample at a time through the patch
        embedding, timesteps padded to `EXACT_ROWS`. Neither changes a value here.
        """
        network, num_rows = self.network, block.timesteps.size
        samples = [network.embed_patches(sample[None], self.emit) for sample in block.latents]
        padding = np.zeros(max(0, EXACT_ROWS - num_rows))
        rows = np.concatenate((block.timesteps.ravel(), padding))
        temb_RD, modulation_R6D = network.embed_timesteps(rows, self.emit)
        modulation = modulation_R6D[:num_rows].reshape(
            *block.timesteps.shape, *modulation_R6D.shape[1:]
        )
        hidden_BLD, layers = network.blocks(
            np.concatenate(samples),
            modulation,
            network.rotary(block.positions, *block.latents.shape[-2:]),
            tuple(KeyValue(*map(to_array, layer)) for layer in text_kv),
            tuple(KeyValue(*map(to_array, layer)) for layer in context)
            if context is not None
            else (None,) * len(text_kv),
            self.emit,
        )
        return temb_RD[:num_rows], hidden_BLD, layers


class ReferenceCodec(ReferenceComponent):
    """Op `decode`: latents to frames, as `BuiltinCodec`."""

    OPS = ("decode",)
    read_facts = staticmethod(BuiltinCodec.read_facts)

    def __init__(self, decoder: ReferenceDecoder) -> None:
        """Take the decoder."""
        super().__init__()
        self._decoder = decoder

    @classmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> Self:
        """Read the decoder; raises InvalidCheckpoint."""
        return cls(read_decoder(folder / spec.subfolder))

    def decode(self, latents: torch.Tensor) -> Mapping[str, object]:
        """Decode latents [1,C,T,H,W] to frames uint8 [4 T,height,width,3]."""
        frames = self._decoder.decode(to_array(latents), self.emit)
        self.emit("pixels", frames[None])
        scaled = np.clip(np.rint((frames + 1.0) * 127.5), 0, 255)
        return {"frames": np.ascontiguousarray(np.moveaxis(scaled, 0, -1).astype(np.uint8))}


def _block(
    latents: torch.Tensor,
    timestep: float,
    first_frame: torch.Tensor,
    text_kv: tuple[TextKV, ...],
) -> _Block:
    """Repeat latents [1,C,T,H,W] for each branch; every frame has the block's timestep."""
    num_branches, num_frames = text_kv[0].key.shape[0], latents.shape[2]
    return _Block(
        latents=np.repeat(to_array(latents), num_branches, axis=0),
        timesteps=np.full((num_branches, num_frames), timestep),
        positions=np.arange(num_frames, dtype=np.float64) + float(first_frame),
    )


def open_reference(folder: Path) -> ModelSource:
    """Open a folder of the built-in model in float64; raises as `open_builtin` does."""
    return reference_of(open_builtin(folder))


def reference_of(source: ModelSource) -> ModelSource:
    """Derive the float64 reference of a built-in model: the same files, other components."""
    adapters: Mapping[str, type[ReferenceComponent]] = {
        TEXT_ENCODER: ReferenceTextEncoder,
        TRANSFORMER: ReferenceTransformer,
        CODEC: ReferenceCodec,
    }
    return derive_reference(source, adapters)
