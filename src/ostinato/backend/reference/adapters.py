"""Reference components that several families share; a family adds what is its own."""

# B batch, L token, D width

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import torch

from ostinato.backend.reference.component import ReferenceComponent, to_tensor
from ostinato.backend.reference.umt5 import UMT5Encoder
from ostinato.backend.reference.wan import ReferenceWan
from ostinato.backend.reference.wan_weights import read_wan
from ostinato.card import ComponentSpec

Tokenize: TypeAlias = Callable[[Sequence[str]], tuple[torch.Tensor, torch.Tensor]]
"""Gives token ids and attention mask of prompts, both int64 [B,L]."""

Advise: TypeAlias = Callable[[str], tuple[str, ...]]
"""Gives sentences of advice on a prompt."""


class ReferenceUMT5(ReferenceComponent):
    """Op `encode` of UMT5. Prompts are tokenized as served: that computes nothing to be rounded."""

    OPS = ("encode",)

    def __init__(self, encoder: UMT5Encoder, tokenize: Tokenize, advise: Advise) -> None:
        """Take the weights, and the family's way with prompts."""
        super().__init__()
        self._encoder = encoder
        self._tokenize = tokenize
        self._advise = advise

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> None:
        """No loop plans by a text encoder."""

    def encode(self, text: str) -> Mapping[str, object]:
        """Return prompt_embeds float64 [1,L,D], zero beyond the prompt, and notes."""
        ids_BL, mask_BL = (tokens.numpy() for tokens in self._tokenize([text]))
        hidden_BLD = self._encoder.encode(ids_BL, mask_BL, self.emit)
        # WanPipeline keeps as many rows as there are tokens, wherever the padding stands.
        kept_BL = np.arange(mask_BL.shape[1]) < mask_BL.sum(1, keepdims=True)
        return {
            "prompt_embeds": to_tensor(hidden_BLD * kept_BL[:, :, None]),
            "notes": self._advise(text),
        }


class ReferenceDenoiser(ReferenceComponent):
    """A Wan network, whole or causal: a family says how it is driven."""

    def __init__(self, network: ReferenceWan) -> None:
        """Take the network."""
        super().__init__()
        self.network = network

    @classmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> Self:
        """Read the network; raises InvalidCheckpoint."""
        return cls(ReferenceWan(*read_wan(folder / spec.subfolder)))
