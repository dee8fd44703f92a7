"""The tokenizer and text encoder of the built-in model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from ostinato.models.builtin import world
from ostinato.models.builtin.architecture import BuiltinArchitecture, build_text_encoder
from ostinato.models.builtin.text import (
    MAX_PROMPT_TOKENS,
    build_tokenizer,
    encode_prompts,
    load_tokenizer,
    tokenize,
    unknown_words,
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(world.words())


def test_special_tokens_have_the_ids_of_t5(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_tokens_to_ids(["<pad>", "</s>", "<unk>"]) == [0, 1, 2]
    assert len(tokenizer) == len(world.words()) + 3


def test_every_world_word_is_known(tokenizer: PreTrainedTokenizerFast) -> None:
    for word in world.words():
        assert unknown_words(tokenizer, word) == ()


def test_captions_are_known_and_fit(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        caption = world.caption(world.sample_scene(rng), rng)
        assert unknown_words(tokenizer, caption) == ()
        assert len(tokenizer(caption).input_ids) <= MAX_PROMPT_TOKENS
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(caption).input_ids)
        assert tokens == [*world.normalize(caption), "</s>"]


def test_unknown_words_are_named_once_as_they_were_typed(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    prompt = "A red Zebra, bouncing on a zebra-striped navy background; Zebra!"
    assert unknown_words(tokenizer, prompt) == ("Zebra", "zebra")


def test_case_and_punctuation_do_not_matter(tokenizer: PreTrainedTokenizerFast) -> None:
    ids, mask = tokenize(tokenizer, ["a red circle", "A RED, circle!", ""])
    assert ids.shape == mask.shape == (3, MAX_PROMPT_TOKENS)
    assert torch.equal(ids[0], ids[1])
    assert ids[2].tolist() == [1] + [0] * (MAX_PROMPT_TOKENS - 1)


def test_tokenizer_round_trips(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    prompts = ["a red circle moving left on a navy background", "", "blob"]
    loaded = load_tokenizer(tmp_path)
    for mine, other in zip(tokenize(tokenizer, prompts), tokenize(loaded, prompts), strict=True):
        assert torch.equal(mine, other)


def test_padding_is_zero_and_does_not_leak(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    encoder = build_text_encoder(BuiltinArchitecture(), len(tokenizer)).eval()
    embeds = encode_prompts(tokenizer, encoder, ["a red circle", ""])
    assert embeds.shape == (2, MAX_PROMPT_TOKENS, 64)
    assert not embeds[0, 4:].any()
    assert not embeds[1, 1:].any()
    assert embeds[1, 0].any()
