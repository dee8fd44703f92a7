"""The vocabulary is unambiguous and its colours can be told apart."""

from __future__ import annotations

import numpy as np

from ostinato.models.builtin.world.backdrop import PATTERN_PERIOD, backdrop, pattern
from ostinato.models.builtin.world.vocabulary import (
    BACKGROUND_COLOUR,
    BACKGROUND_PHRASES,
    COLOUR_PHRASES,
    MOTION_ADJECTIVES,
    MOTION_KEYWORDS,
    MOTION_PHRASES,
    MOTION_VERBS,
    PALETTE,
    SHAPE_PHRASES,
    Background,
    Colour,
    Motion,
    Shape,
    words,
)

FLAT = (Background.BLACK, Background.WHITE, Background.GRAY, Background.NAVY)


def test_every_value_has_phrases_and_no_phrase_means_two_things() -> None:
    tables = (SHAPE_PHRASES, COLOUR_PHRASES, MOTION_KEYWORDS, BACKGROUND_PHRASES)
    kinds = (Shape, Colour, Motion, Background)
    phrases = [phrase for table in tables for entry in table.values() for phrase in entry]
    assert len(phrases) == len(set(phrases))
    for table, kind in zip(tables, kinds, strict=True):
        assert set(table) == set(kind)
    for table in (MOTION_PHRASES, MOTION_VERBS, MOTION_ADJECTIVES):
        assert set(table) == set(Motion)


def test_canonical_phrases_are_the_names() -> None:
    assert all(SHAPE_PHRASES[shape][0] == shape for shape in Shape)
    assert all(COLOUR_PHRASES[colour][0] == colour for colour in Colour)
    assert all(BACKGROUND_PHRASES[name][0] == name for name in Background)


def test_words_are_sorted_single_lower_case_and_unique() -> None:
    listed = words()
    assert list(listed) == sorted(set(listed))
    assert all(word == word.lower() and len(word.split()) == 1 for word in listed)
    assert {"orange", "navy", "bouncing", "background", "a"} <= set(listed)


def test_object_colours_are_far_from_each_other_and_from_every_background_pixel() -> None:
    palette = np.array(tuple(PALETTE.values()), float)
    gaps = np.linalg.norm(palette[:, None] - palette, axis=-1)
    assert gaps[~np.eye(len(palette), dtype=bool)].min() >= 100
    for name in Background:
        pixels = backdrop(name).reshape(-1, 1, 3).astype(float)
        assert np.linalg.norm(pixels - palette, axis=-1).min() >= 100, name


def test_background_colours_are_apart() -> None:
    table = np.array(tuple(BACKGROUND_COLOUR.values()), float)
    gaps = np.linalg.norm(table[:, None] - table, axis=-1)
    assert gaps[~np.eye(len(table), dtype=bool)].min() >= 60


def test_patterns_repeat_and_flat_backgrounds_are_flat() -> None:
    for name in Background:
        wave = pattern(name)
        for axis in (0, 1):
            assert np.allclose(wave, np.roll(wave, PATTERN_PERIOD, axis=axis), atol=1e-4)
        assert (np.ptp(wave) == 0) == (name in FLAT)
        # Rounding to 8 bits must neither clip nor wrap a pattern.
        contrast = np.ptp(backdrop(name).astype(int), axis=(0, 1))
        assert contrast.max() <= 31
        assert np.ptp(contrast) <= 1
