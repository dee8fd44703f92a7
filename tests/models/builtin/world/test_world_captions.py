"""Captions can be read back, and prompts that nobody anticipated are read sensibly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.models.builtin.world import (
    Background,
    Colour,
    Motion,
    ParsedPrompt,
    Shape,
    Split,
    canonical_prompt,
    caption,
    normalize,
    parse_prompt,
    sample_scene,
    words,
)


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), split=st.sampled_from(list(Split)))
def test_every_caption_reads_back(seed: int, split: Split) -> None:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng, split=split)
    spec, text = scene.objects[0], caption(scene, rng)
    assert parse_prompt(text) == ParsedPrompt(
        shape=spec.shape,
        colour=spec.colour,
        motion=spec.motion,
        background=scene.background,
    ), text


def test_captions_use_every_word_and_no_other() -> None:
    rng = np.random.default_rng(0)
    texts = [caption(sample_scene(rng), rng) for _ in range(4000)]
    assert {word for text in texts for word in normalize(text)} == set(words())
    # No wording dominates what training sees.
    assert len(set(texts)) > 3000


def test_every_canonical_prompt_reads_back_with_the_right_article() -> None:
    for shape, colour, motion, background in itertools.product(Shape, Colour, Motion, Background):
        text = canonical_prompt(shape, colour, motion, background)
        assert parse_prompt(text) == ParsedPrompt(
            shape=shape, colour=colour, motion=motion, background=background
        )
        assert text.startswith("an orange" if colour is Colour.ORANGE else f"a {colour}")


def test_a_caption_of_two_objects_names_both() -> None:
    rng = np.random.default_rng(2)
    scene = sample_scene(rng, num_objects=2)
    text = caption(scene, rng)
    first, second = text.split(" and ")
    for spec, clause in zip(scene.objects, (first, second), strict=True):
        read = parse_prompt(clause)
        assert (read.shape, read.colour, read.motion) == (spec.shape, spec.colour, spec.motion)
    assert parse_prompt(text).background is scene.background


NOTHING = (None, None, None, None)


@pytest.mark.parametrize(
    ("text", "attributes", "unknown"),
    [
        ("Navy background, RED ball that bounces!", ("circle", "red", "bouncing", "navy"), ()),
        ("bouncing red circle, navy", ("circle", "red", "bouncing", "navy"), ()),
        ("a dark-blue wall; an orange ring rising", ("ring", "orange", "up", "navy"), ()),
        ("a dark blue circle", ("circle", "blue", None, None), ("dark",)),
        ("a black circle on white", ("circle", None, None, "white"), ("black",)),
        (
            "black bouncing ball, white background",
            ("circle", None, "bouncing", "white"),
            ("black",),
        ),
        ("green background, red box", ("square", "red", None, None), ("green",)),
        ("a red and blue circle", ("circle", "red", None, None), ("blue",)),
        ("striped brown wall", (None, None, None, "checkered brown"), ("striped",)),
        ("a circle moving left and right", ("circle", None, "left", None), ("right",)),
        ("the square does not move", ("square", None, "still", None), ()),
        ("a diamond that isn't moving", ("diamond", None, "still", None), ()),
        ("a golden retriever", NOTHING, ("golden", "retriever")),
        ("orange", (None, "orange", None, None), ()),
        ("", NOTHING, ()),
        ("?!...", NOTHING, ()),
        ("\u7ea2\u8272 circle", ("circle", None, None, None), ("\u7ea2\u8272",)),
    ],
)
def test_prompts_that_people_type(
    text: str, attributes: tuple[str | None, ...], unknown: tuple[str, ...]
) -> None:
    read = parse_prompt(text)
    assert (read.shape, read.colour, read.motion, read.background) == attributes
    assert read.unknown_words == unknown


@given(st.text(max_size=80))
def test_reading_never_fails_and_accounts_for_every_foreign_word(text: str) -> None:
    foreign = [word for word in normalize(text) if word not in words()]
    assert set(foreign) <= set(parse_prompt(text).unknown_words)
