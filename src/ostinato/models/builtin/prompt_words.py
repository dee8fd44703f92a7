"""Say which words of a prompt the model does not know, beside those it does."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from ostinato.models.builtin.text import unknown_words
from ostinato.models.builtin.world import Background, Colour, Motion, Shape


def unknown_words_advice(tokenizer: PreTrainedTokenizerFast, prompt: str) -> tuple[str, ...]:
    """Return one sentence when the prompt has unknown words, none otherwise."""
    unknown = unknown_words(tokenizer, prompt)
    if not unknown:
        return ()
    known = "; ".join(
        f"{kind}: {', '.join(value.value for value in values)}"
        for kind, values in (
            ("shapes", Shape),
            ("colours", Colour),
            ("motions", Motion),
            ("backgrounds", Background),
        )
    )
    return (
        f"this model does not know {', '.join(map(repr, unknown))} and ignores such words; "
        f"it knows {known}",
    )
