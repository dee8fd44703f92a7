"""Writes the caption of a scene the ways people type it.

Invariant: `prompt.parse_prompt` reads the attributes back from every template and synonym, with no
unknown word, and every word is in `vocabulary.words()`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ostinato.models.builtin.world.scene import ObjectSpec, Scene
from ostinato.models.builtin.world.vocabulary import (
    BACKDROP_NOUNS,
    BACKGROUND_PHRASES,
    COLOUR_PHRASES,
    MOTION_ADJECTIVES,
    MOTION_PHRASES,
    MOTION_VERBS,
    SHAPE_PHRASES,
    Background,
    Colour,
    Motion,
    Shape,
)

# {object} "red circle", {moving} "moving left", {moves} "moves left", {mover} "rising",
# {scenery} "navy background", {on} a preposition; "a " before a name asks for the article.
_TEMPLATES = (
    "{a object} {moving} {on} {a scenery}",
    "{object} {moving} {on} {scenery}",
    "{a object} {moving} {on} {background}",
    "{object} {moving} {on} {background}",
    "{a object} {moves} {on} {a scenery}",
    "{a object} that {moves} {on} {a scenery}",
    "{scenery}, {object} that {moves}",
    "{scenery}, {a object} {moving}",
    "{mover} {object}, {background}",
    "{a mover} {object} {on} {a scenery}",
    "{object}, {moving}, {scenery}",
    "{object} {moving} with {a scenery}",
    "on {a scenery}, {a object} is {moving}",
    "the {shape} is {colour} and {moving}, the background is {background}",
    "a video of {a object} {moving} {on} {a scenery}",
    "show me a clip of {a object} {moving} {on} {a scenery}",
)
_PREPOSITIONS = ("on", "on", "on", "over", "in front of", "against", "across")
# How often a caption keeps the plain word order, an initial capital, a full stop.
_PLAIN_SHARE, _CAPITAL_SHARE, _STOP_SHARE = 0.35, 0.3, 0.3


def canonical_prompt(shape: Shape, colour: Colour, motion: Motion, background: Background) -> str:
    """Write the plain form: "a red circle moving left on a navy background"."""
    return (
        f"{_with_article(f'{colour} {shape}')} {MOTION_PHRASES[motion][0]} "
        f"on {_with_article(background)} background"
    )


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Write one sentence about a scene with random wording, word order and punctuation."""
    if len(scene.objects) == 1 and rng.random() >= _PLAIN_SHARE:
        template = _pick(rng, _TEMPLATES)
        text = template.format_map(_parts(scene.objects[0], scene.background, rng))
    else:
        parts = [_parts(spec, scene.background, rng) for spec in scene.objects]
        clauses = [f"{part['a object']} {part['moving']}" for part in parts]
        text = f"{' and '.join(clauses)} on {parts[0]['a scenery']}"
    if rng.random() < _CAPITAL_SHARE:
        text = text[0].upper() + text[1:]
    return f"{text}." if rng.random() < _STOP_SHARE else text


def _parts(spec: ObjectSpec, background: Background, rng: np.random.Generator) -> dict[str, str]:
    shape = _pick(rng, SHAPE_PHRASES[spec.shape])
    colour = _pick(rng, COLOUR_PHRASES[spec.colour])
    behind = _pick(rng, BACKGROUND_PHRASES[background])
    plain = {
        "shape": shape,
        "colour": colour,
        "object": f"{colour} {shape}",
        "moving": _pick(rng, MOTION_PHRASES[spec.motion]),
        "moves": _pick(rng, MOTION_VERBS[spec.motion]),
        "mover": _pick(rng, MOTION_ADJECTIVES[spec.motion]),
        "on": _pick(rng, _PREPOSITIONS),
        "background": behind,
        "scenery": f"{behind} {_pick(rng, ('background', *BACKDROP_NOUNS))}",
    }
    return plain | {f"a {name}": _with_article(part) for name, part in plain.items()}


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _pick(rng: np.random.Generator, choices: Iterable[str]) -> str:
    options = tuple(choices)
    return options[int(rng.integers(len(options)))]
