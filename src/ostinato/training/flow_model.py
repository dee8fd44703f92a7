"""The trained part of the built-in model: transformer and text encoder, stepped together."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Sequence

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from ostinato.backend.nets.dense_wan import (
    DenseBlock,
    block_causal_mask,
    dense_block,
    dense_forward,
)
from ostinato.models.builtin.architecture import build_text_encoder, build_transformer
from ostinato.models.builtin.text import encode_tokens, tokenize
from ostinato.training.config import TrainingConfig


class FlowModel:
    """Predict velocities from noisy latents and prompts."""

    def __init__(
        self,
        transformer: WanTransformer3DModel,
        text_encoder: UMT5EncoderModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        chunk_latent_frames: int,
        autocast: bool,
    ) -> None:
        self.transformer = transformer
        self.text_encoder = text_encoder
        self.tokenizer = tokenizer
        self.chunk_latent_frames = chunk_latent_frames
        self.autocast = autocast
        self._block_forward: DenseBlock | None = None

    @classmethod
    def build(cls, config: TrainingConfig, tokenizer: PreTrainedTokenizerFast) -> FlowModel:
        """Build with initial values that depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            transformer = build_transformer(config.architecture)
            text_encoder = build_text_encoder(config.architecture, len(tokenizer))
        return cls(
            transformer,
            text_encoder,
            tokenizer,
            chunk_latent_frames=config.method.chunk_latent_frames,
            autocast=config.autocast,
        )

    def compile(self) -> None:
        """Compile the transformer block that all layers share, or say why it stays eager."""
        if shutil.which("g++") is None:
            warnings.warn("no C++ compiler found (g++): training runs eagerly", stacklevel=2)
            return
        self._block_forward = torch.compile(dense_block, dynamic=False)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return all trained parameters by name."""
        return {
            f"{part}.{name}": parameter
            for part, module in (
                ("transformer", self.transformer),
                ("text_encoder", self.text_encoder),
            )
            for name, parameter in module.named_parameters()
        }

    def frozen_copy(self) -> FlowModel:
        """Return an eager copy without gradients, to hold averaged weights."""
        return FlowModel(
            copy.deepcopy(self.transformer).eval().requires_grad_(False),
            copy.deepcopy(self.text_encoder).eval().requires_grad_(False),
            self.tokenizer,
            chunk_latent_frames=self.chunk_latent_frames,
            autocast=self.autocast,
        )

    def velocity(
        self, latents_BCTHW: Tensor, timesteps_BT: Tensor, prompts: Sequence[str]
    ) -> Tensor:
        """Return the velocity of noisy latents, block-causal across chunks."""
        num_frames = latents_BCTHW.shape[2]
        ids, mask = tokenize(self.tokenizer, prompts)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            prompt_embeds = encode_tokens(self.text_encoder, ids, mask)
            return dense_forward(
                self.transformer,
                latents_BCTHW,
                timesteps_BT,
                prompt_embeds,
                torch.arange(num_frames),
                block_causal_mask(num_frames, self.chunk_latent_frames),
                attention="matmul",
                block_forward=self._block_forward,
            )
