"""Keyed noise: (seed, purpose, index) decides it, and nothing else does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.loop.noise import NoiseStream

SHAPE = (1, 4, 2, 3, 3)
keys = st.tuples(
    st.integers(0, 2**63 - 1),
    st.sampled_from(["initial", "renoise"]),
    st.lists(st.integers(0, 1000), max_size=3).map(tuple),
)


@given(keys, keys)
def test_another_seed_purpose_or_index_is_another_key(left: tuple, right: tuple) -> None:
    one, other = (NoiseStream(seed=s).key(p, *i) for s, p, i in (left, right))
    assert (one == other) == (left == right)
    assert 0 <= one < 2**63


def test_draws_do_not_depend_on_order_or_on_the_process_wide_generator() -> None:
    stream = NoiseStream(seed=7)
    draws = [("initial", 0), ("renoise", 1), ("renoise", 0)]
    forward = {draw: stream.normal(SHAPE, *draw) for draw in draws}
    torch.manual_seed(123)
    state = torch.get_rng_state()
    backward = {draw: NoiseStream(seed=7).normal(SHAPE, *draw) for draw in reversed(draws)}
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(forward[draw], backward[draw]) for draw in draws)


def test_draws_of_different_keys_are_independent() -> None:
    big = (100, 100)
    draws = [
        NoiseStream(seed=1).normal(big, "initial", 0),
        NoiseStream(seed=2).normal(big, "initial", 0),
        NoiseStream(seed=1).normal(big, "initial", 1),
        NoiseStream(seed=1).normal(big, "renoise", 0),
    ]
    correlation = torch.corrcoef(torch.stack([draw.flatten() for draw in draws]))
    # 10_000 samples: the correlation of independent draws has a deviation of 0.01.
    assert (correlation - torch.eye(4)).abs().max() < 0.05
    assert all(abs(draw.mean()) < 0.05 and abs(draw.std() - 1) < 0.05 for draw in draws)


def test_noise_is_float32_whatever_the_default() -> None:
    expected = NoiseStream(seed=1).normal(SHAPE, "initial", 0)
    torch.set_default_dtype(torch.float64)
    try:
        found = NoiseStream(seed=1).normal(SHAPE, "initial", 0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_the_oracle_generator_is_seeded_by_the_bare_seed() -> None:
    found = torch.randn(SHAPE, generator=NoiseStream(seed=42).oracle_generator())
    assert torch.equal(found, torch.randn(SHAPE, generator=torch.Generator().manual_seed(42)))


def test_a_slash_in_a_purpose_is_refused() -> None:
    with pytest.raises(AssertionError, match="share a key"):
        NoiseStream(seed=0).key("a/1", 2)


def test_keys_never_change() -> None:
    """Recorded: seeds that people wrote down must go on to mean the same clip."""
    assert NoiseStream(seed=0).key("initial", 0) == 1_851_564_443_174_011_541
    assert NoiseStream(seed=1).key("renoise", 2, 3) == 8_787_743_399_893_915_284
