"""Prices of stacks between and beyond those that were measured, and which sizes are tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime.stack_table import stack_table


def guess(items: int) -> float:
    return 100.0 * items


def test_measured_sizes_stand_and_others_lie_on_the_line_through_them() -> None:
    table = stack_table({1: 1.0, 2: 1.2, 4: 2.0}, guess, most=6)
    assert table.seconds == pytest.approx((1.0, 1.2, 1.6, 2.0, 2.4, 2.8))


def test_what_was_never_measured_costs_no_more_than_its_parts() -> None:
    assert stack_table({1: 1.0}, guess, most=3).seconds == (1.0, 2.0, 3.0)
    assert stack_table({1: 1.0}, lambda items: 1.1, most=2).seconds == (1.0, 1.1)


def test_a_line_that_falls_is_not_followed() -> None:
    assert stack_table({1: 1.0, 2: 0.9}, guess, most=4).seconds == (0.9, 0.9, 0.9, 0.9)


@pytest.mark.parametrize(
    ("known", "trial"),
    [
        ({1: 0.4}, 2),
        ({1: 1.0}, 0),  # so long a call gains nothing that the guess does not know of
        ({1: 1.0, 2: 1.5}, 4),
        ({1: 1.0, 3: 1.5}, 6),
        ({1: 1.0, 4: 3.0}, 7),
        ({1: 1.0, 2: 1.96}, 0),  # a gain that is none
        ({1: 1.0, 7: 1.0}, 0),
    ],
)
def test_twice_as_many_are_tried_as_long_as_it_pays(known: dict[int, float], trial: int) -> None:
    assert stack_table(known, guess, most=7).trial == trial


def test_a_long_call_is_tried_where_the_guess_promises_something() -> None:
    assert stack_table({1: 10.0}, lambda items: 19.0, most=8).trial == 2
    assert stack_table({1: 10.0}, lambda items: 19.9, most=8).trial == 0


@given(
    known=st.dictionaries(st.integers(2, 16), st.floats(1e-6, 1e3), max_size=6),
    one=st.floats(1e-6, 1e3),
    most=st.integers(1, 16),
)
def test_prices_are_positive_and_never_fall(known: dict[int, float], one: float, most: int) -> None:
    table = stack_table({1: one, **known}, guess, most=most)
    assert len(table.seconds) == most
    assert list(table.seconds) == sorted(table.seconds)
    assert all(seconds > 0 for seconds in table.seconds)
    assert 0 <= table.trial <= most
