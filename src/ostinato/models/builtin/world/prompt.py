"""Reads what a prompt asks for.

Invariant: reading never fails; whatever cannot be honoured is reported as an unknown word, never
silently bent into something else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ostinato.models.builtin.world.vocabulary import (
    BACKDROP_NOUNS,
    BACKGROUND_PHRASES,
    COLOUR_PHRASES,
    MOTION_KEYWORDS,
    SHAPE_PHRASES,
    Background,
    Colour,
    Motion,
    Shape,
    words,
)

_Attribute: TypeAlias = Shape | Colour | Motion | Background
_LONGEST_PHRASE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPrompt:
    """What a prompt asks for; None where it is silent.

    `unknown_words` cannot be honoured: they are outside the vocabulary, in conflict with an earlier
    word ("a red and blue circle"), or said of what they cannot describe ("a black circle", "a green
    background").
    """

    shape: Shape | None = None
    colour: Colour | None = None
    motion: Motion | None = None
    background: Background | None = None
    unknown_words: tuple[str, ...] = ()


class _Mention(NamedTuple):
    meaning: _Attribute
    start: int
    end: int


def normalize(text: str) -> list[str]:
    """Split text into lower-case words without punctuation ("isn't" is "is not")."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    return re.findall(r"[^\W_]+", plain.replace("n't", " not").replace("'", ""))


def parse_prompt(text: str) -> ParsedPrompt:
    """Read the attributes that a prompt asks for, in any wording and word order."""
    spoken = normalize(text)
    known = frozenset(words())
    unknown = {at for at, word in enumerate(spoken) if word not in known}
    shape: Shape | None = None
    colour: Colour | None = None
    motion: Motion | None = None
    background: Background | None = None
    # A phrase tied to "background" outranks one that merely names a background's colour.
    for mention in sorted(_mentions(spoken), key=lambda mention: not _is_tied(mention, spoken)):
        honoured = not _is_misplaced(mention, spoken)
        match mention.meaning:
            case _ if not honoured:
                pass
            case Shape() as said:
                shape = shape or said
                honoured = shape is said
            case Colour() as said:
                colour = colour or said
                honoured = colour is said
            case Motion() as said:
                motion = motion or said
                honoured = motion is said
            case Background() as said:
                background = background or said
                honoured = background is said
        if not honoured:
            unknown.update(range(mention.start, mention.end))
    return ParsedPrompt(
        shape=shape,
        colour=colour,
        motion=motion,
        background=background,
        unknown_words=tuple(spoken[at] for at in sorted(unknown)),
    )


def _phrases() -> dict[tuple[str, ...], _Attribute]:
    tables = (SHAPE_PHRASES, COLOUR_PHRASES, MOTION_KEYWORDS, BACKGROUND_PHRASES)
    return {
        tuple(phrase.split()): meaning
        for table in tables
        for meaning, phrases in table.items()
        for phrase in phrases
    }


def _mentions(spoken: list[str]) -> Iterator[_Mention]:
    """Yield the phrases that carry an attribute, longest match first, left to right."""
    phrases = _phrases()
    start = 0
    while start < len(spoken):
        for length in range(_LONGEST_PHRASE, 0, -1):
            end = start + length
            meaning = phrases.get(tuple(spoken[start:end]))
            if meaning is not None and end <= len(spoken):
                # "dark blue circle": before a shape only the colour word can be meant.
                if _is_shape(spoken, end) and length > 1 and spoken[end - 1] in tuple(Colour):
                    yield _Mention(meaning, start, end - 1)
                    meaning, start = Colour(spoken[end - 1]), end - 1
                yield _Mention(meaning, start, end)
                break
        else:
            end = start + 1
        start = end


def _is_tied(mention: _Mention, spoken: list[str]) -> bool:
    before = spoken[max(mention.start - 2, 0) : mention.start]
    follows = len(before) == 2 and before[0] in BACKDROP_NOUNS and before[1] == "is"
    return _is_backdrop(spoken, mention.end) or follows


def _is_misplaced(mention: _Mention, spoken: list[str]) -> bool:
    """Return whether an object's colour is said of the background, or the other way round."""
    match mention.meaning:
        case Colour():
            return _is_tied(mention, spoken)
        case Background():
            after = spoken[mention.end : mention.end + 1]
            return _is_shape(spoken, mention.end) or after in [[colour] for colour in Colour]
        case _:
            return False


def _is_backdrop(spoken: list[str], at: int) -> bool:
    return at < len(spoken) and spoken[at] in BACKDROP_NOUNS


def _is_shape(spoken: list[str], at: int) -> bool:
    nouns = {noun for phrases in SHAPE_PHRASES.values() for noun in phrases}
    return at < len(spoken) and spoken[at] in nouns
