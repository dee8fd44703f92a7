"""The library's UMT5 encoder as a component: what every family that has one shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

from ostinato.backend.checkpoint import TRANSFORMERS_STEM
from ostinato.backend.estimate import encode_work
from ostinato.backend.operations import Inputs, Operations
from ostinato.backend.taps import Tap, module_taps, umt5_taps
from ostinato.card import ComponentSpec
from ostinato.work import OpWork

T = TypeVar("T", bound=PreTrainedTokenizerBase)


class UMT5TextEncoder(Operations, ABC, Generic[T]):
    """Op `encode`; a family says how a prompt becomes tokens, and what is kept of them."""

    OPS = ("encode",)
    STEM = TRANSFORMERS_STEM
    PROMPT_TOKENS: ClassVar[int]  # the length to which every prompt is padded

    def __init__(self, text_encoder: UMT5EncoderModel, tokenizer: T) -> None:
        """Take the live objects; weights aligned."""
        self.module = text_encoder
        self.tokenizer = tokenizer
        self._work = encode_work(text_encoder, self.PROMPT_TOKENS)

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> None:
        """No loop plans by a text encoder."""

    def observe(self, tap: Tap) -> AbstractContextManager[None]:
        """Look into the encoder; see `ostinato.loop.observe`."""
        return module_taps(self.module, umt5_taps(self.module.config.num_layers), tap)

    def estimate(self, op: str, inputs: Inputs) -> OpWork:
        """Estimate a call: every prompt is padded to one length; see `ostinato.loop.cost`."""
        self.op(op)  # raises for one that is not there
        return self._work

    @abstractmethod
    def encode(self, text: str) -> Mapping[str, object]:
        """Return prompt_embeds [1,L,D] of one prompt, and notes, sentences of advice on it."""
