"""The prompt side of the built-in model: a word-level tokenizer over the vocabulary of its world.

Invariant: a prompt is encoded as WanPipeline encodes it - padded to a fixed length, the encoder
masked, the embeddings of the padding set to zero - so that serving and training agree. The empty
prompt is the unconditional branch of guidance.
"""

# B batch, L token, D width

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from ostinato.backend.loading import loading
from ostinato.errors import InvalidCheckpoint

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2 as in T5
MAX_PROMPT_TOKENS = 24


def build_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Build the tokenizer of a vocabulary: lower case, punctuation dropped, split at spaces."""
    vocabulary = {token: index for index, token in enumerate((PAD, END, UNKNOWN, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(r"[^\w\s]|_"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, vocabulary[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=MAX_PROMPT_TOKENS,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read `tokenizer.json` and `tokenizer_config.json`; raises InvalidCheckpoint."""
    try:
        with loading():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        raise InvalidCheckpoint(
            f"the tokenizer in {str(folder)!r} does not load: {type(error).__name__}: {error}"
        ) from error
    lacking = [t for t in (PAD, END, UNKNOWN) if t not in tokenizer.get_vocab()]
    if lacking or tokenizer.unk_token != UNKNOWN or tokenizer.pad_token != PAD:
        raise InvalidCheckpoint(
            f"the tokenizer in {str(folder)!r} lacks {lacking or 'its special tokens'}; expected "
            f"a word list with {PAD}, {END} and {UNKNOWN}"
        )
    return tokenizer


def tokenize(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask, both int64 [B, MAX_PROMPT_TOKENS]."""
    encoded = tokenizer(
        list(prompts),
        padding="max_length",
        max_length=MAX_PROMPT_TOKENS,
        truncation=True,
        return_tensors="pt",
    )
    return encoded["input_ids"], encoded["attention_mask"]


def encode_tokens(text_encoder: UMT5EncoderModel, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """Return prompt embeddings [B,L,D] with the padding set to zero."""
    hidden_states = text_encoder(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
    return hidden_states * mask_BL[:, :, None].to(hidden_states.dtype)


@torch.no_grad()
def encode_prompts(
    tokenizer: PreTrainedTokenizerFast, text_encoder: UMT5EncoderModel, prompts: Sequence[str]
) -> Tensor:
    """Tokenize and encode prompts to embeddings [B,L,D]."""
    ids, mask = tokenize(tokenizer, prompts)
    return encode_tokens(text_encoder, ids, mask)


def unknown_words(tokenizer: PreTrainedTokenizerFast, prompt: str) -> tuple[str, ...]:
    """Return the words of the prompt that the model never saw, in order, each once."""
    encoding = tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=False)
    unknown_id = tokenizer.unk_token_id
    found = (
        prompt[start:end]
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
        if token_id == unknown_id
    )
    return tuple(dict.fromkeys(found))
