"""The prompt side of Wan: tokens as WanPipeline makes them."""

# B batch, L token

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from torch import Tensor
from transformers import PreTrainedTokenizerBase

# WanPipeline's max_sequence_length: the prompt length that the published weights were made for.
MAX_PROMPT_TOKENS = 512


def tokenize(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask of cleaned prompts, both int64 [B,MAX_PROMPT_TOKENS]."""
    tokens = tokenizer(
        [prompt_clean(prompt) for prompt in prompts],
        padding="max_length",
        max_length=MAX_PROMPT_TOKENS,
        truncation=True,
        add_special_tokens=True,
        return_attention_mask=True,
        return_tensors="pt",
    )
    return cast("Tensor", tokens["input_ids"]), cast("Tensor", tokens["attention_mask"])


def cut_prompt_advice(tokenizer: PreTrainedTokenizerBase, prompt: str) -> tuple[str, ...]:
    """Return one sentence when the prompt has more tokens than are read, none otherwise."""
    num_tokens = len(tokenizer(prompt_clean(prompt), verbose=False)["input_ids"])
    if num_tokens <= MAX_PROMPT_TOKENS:
        return ()
    return (f"a prompt has {num_tokens} tokens; the first {MAX_PROMPT_TOKENS} are used",)
