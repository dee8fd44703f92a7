"""The fit of three unknowns: exact on a line, never negative, blind to a few wrong points."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.work._fit import Coefficients, Point, fit_non_negative, local_ratio

AMOUNTS = [(1.0, 5.0), (2.0, 3.0), (4.0, 9.0), (8.0, 2.0), (16.0, 12.0), (32.0, 30.0)]


def points(truth: Coefficients) -> list[Point]:
    return [Point(1e9 * f, 1e6 * b, truth.at(1e9 * f, 1e6 * b)) for f, b in AMOUNTS]


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1e-9), st.floats(0, 1e-6))
def test_a_line_is_found(fixed: float, per_flop: float, per_byte: float) -> None:
    truth = Coefficients(fixed + 1e-4, per_flop, per_byte)
    found = fit_non_negative(points(truth))
    assert found is not None
    assert min(found) >= 0
    for point in points(truth):
        assert found.at(point.flops, point.num_bytes) == pytest.approx(point.seconds, rel=0.03)


def test_no_coefficient_is_negative_where_the_best_would_be() -> None:
    falling = [Point(1e9, 0.0, 3.0), Point(2e9, 0.0, 2.0), Point(4e9, 0.0, 1.0)]
    found = fit_non_negative(falling)
    assert found is not None
    assert min(found) >= 0
    assert found.per_flop == 0.0


def test_a_wrong_point_changes_nothing() -> None:
    truth = Coefficients(0.1, 1e-10, 1e-9)
    wrong = points(truth)
    wrong[2] = wrong[2]._replace(seconds=10 * wrong[2].seconds)
    found = fit_non_negative(wrong)
    assert found is not None
    for point in points(truth):
        assert found.at(point.flops, point.num_bytes) == pytest.approx(point.seconds, rel=0.05)


def test_weight_decides_between_points_that_disagree() -> None:
    same = [Point(1e9, 0.0, 1.0, 0.1), Point(1e9, 0.0, 2.0, 5.0)]
    found = fit_non_negative(same)
    assert found is not None
    assert found.at(1e9, 0.0) == pytest.approx(2.0, rel=0.05)


def test_amounts_of_nothing_leave_the_fixed_cost() -> None:
    found = fit_non_negative([Point(0.0, 0.0, 0.25)] * 3)
    assert found == Coefficients(pytest.approx(0.25), 0.0, 0.0)


def test_no_points_no_fit() -> None:
    assert fit_non_negative([]) is None


def test_a_shape_nearby_counts_more_than_one_far_off() -> None:
    fit = Coefficients(0.0, 1.0, 0.0)
    known = [Point(1.0, 1.0, 2.0), Point(1e6, 1.0, 1e6)]
    assert local_ratio(known, fit, 1.0, 1.0) == pytest.approx(2.0, rel=0.1)
    assert local_ratio(known, fit, 1e6, 1.0) == pytest.approx(1.0, rel=0.1)
    assert local_ratio([], fit, 5.0, 1.0) == 1.0
    assert local_ratio(known[:1], fit, 0.0, 0.0) == 1.0
