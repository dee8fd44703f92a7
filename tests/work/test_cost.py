"""The cost model: learns from what it is told, bears outliers, follows a drift, never breaks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.work import CostKey, CostModel, DeviceRates, Measured, OpWork
from ostinato.work._cost import MAX_SHAPES, WINDOW

NOISE = 0.03


def key(
    form: str = "a", *, op: str = "predict", component: str = "m/net", items: int = 1
) -> CostKey:
    return CostKey(component, op, form, items)


def work(size: float) -> OpWork:
    return OpWork(flops=1e9 * size, weight_bytes=1e6, activation_bytes=1e6 * size)


def told(model: CostModel, k: CostKey, w: OpWork, seconds: float, times: int = 1) -> CostModel:
    for _ in range(times):
        model.observe(k, w, seconds)
    return model


# What is known.


def test_nothing_known_gives_the_estimate() -> None:
    rates = DeviceRates(flops_per_s=1e9, bytes_per_s=1e6, overhead_s=0.5)
    estimate = OpWork(flops=2e9, weight_bytes=1e6, activation_bytes=3e6)
    assert CostModel(rates).predict(key(), estimate) == pytest.approx(0.5 + 2 + 4)
    assert CostModel(rates).prior(estimate) == pytest.approx(6.5)


def test_a_measured_shape_is_known_by_its_median() -> None:
    model = CostModel()
    for seconds in (0.9, 1.0, 1.1) * 6:
        model.observe(key(), work(1), seconds)
    assert model.num_measured(key(), work(1))
    assert model.predict(key(), work(1)) == pytest.approx(1.0)


def test_a_first_cold_measurement_is_outvoted_by_the_second() -> None:
    model = CostModel()
    for size in (1, 2, 3, 4, 5):
        told(model, key(f"s{size}"), work(size), 0.1 * size, WINDOW)
    model.observe(key("new"), work(6), 6.0)
    model.observe(key("new"), work(6), 0.62)
    assert model.predict(key("new"), work(6)) == pytest.approx(0.6, rel=0.1)


def test_an_op_never_seen_is_scaled_by_what_the_device_does() -> None:
    model = told(CostModel(), key(), work(1), 3 * CostModel().prior(work(1)), 4)
    assert model.predict(key(op="other"), work(7)) == pytest.approx(3 * model.prior(work(7)))


@pytest.mark.parametrize("size", [3.0, 6.0, 14.0])
def test_a_shape_never_seen_lies_on_the_line_of_those_that_were(size: float) -> None:
    def seconds(s: float) -> float:
        return 0.02 + 0.005 * s

    model = CostModel()
    for known in (1, 2, 4, 8, 16):
        told(model, key(f"s{known}"), work(known), seconds(known), 5)
    assert not model.num_measured(key("new"), work(size))
    assert model.predict(key("new"), work(size)) == pytest.approx(seconds(size), rel=0.05)


def test_shapes_nearby_correct_the_line() -> None:
    """A cliff between sizes is no line; what was measured on either side of it tells."""

    def seconds(s: float) -> float:
        return 0.01 * s * (1.0 if s < 100 else 1.6)

    model = CostModel()
    for known in (10, 20, 40, 80, 160, 320, 640):
        told(model, key(f"s{known}"), work(known), seconds(known), WINDOW)
    for size in (15, 30, 300, 500):
        assert model.predict(key("new"), work(size)) == pytest.approx(seconds(size), rel=0.15)


def test_a_key_that_came_to_mean_other_work_is_learned_anew() -> None:
    model = told(CostModel(), key(), work(1), 1.0, WINDOW)
    assert not model.num_measured(key(), work(2))
    told(model, key(), work(2), 5.0, 2)
    assert model.predict(key(), work(2)) == pytest.approx(5.0)
    assert not model.num_measured(key(), work(1))


def test_sums_that_differ_by_rounding_are_one_work() -> None:
    model = told(CostModel(), key(items=3), work(0.1).times(3), 1.0, WINDOW)
    thrice = OpWork(flops=0.1e9 + 0.1e9 + 0.1e9, weight_bytes=1e6, activation_bytes=0.3e6)
    assert model.num_measured(key(items=3), thrice)


def test_stacked_work_reads_weights_once() -> None:
    one = OpWork(flops=2.0, weight_bytes=3.0, activation_bytes=4.0)
    assert one.times(5) == OpWork(flops=10.0, weight_bytes=3.0, activation_bytes=20.0)
    assert one.num_bytes == 7.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_duration_is_not_learned(seconds: float) -> None:
    model = told(CostModel(), key(), work(1), seconds)
    assert not model.num_measured(key(), work(1))


# What a later process gets.


def test_what_was_measured_makes_an_equal_model() -> None:
    model, drawn = CostModel(), random.Random(3)
    for index in range(200):
        size = drawn.randint(1, 9)
        model.observe(key(f"s{size}", op=f"op{index % 2}"), work(size), drawn.uniform(0.1, 1.0))
    kept = tuple(model.measured())
    again = CostModel(measured=kept)
    assert tuple(again.measured()) == kept
    assert all(isinstance(entry, Measured) and len(entry.seconds) <= WINDOW for entry in kept)
    for size in range(1, 12):
        assert again.predict(key(f"s{size}", op="op0"), work(size)) == pytest.approx(
            model.predict(key(f"s{size}", op="op0"), work(size)), rel=0.05
        )


def test_the_shape_measured_longest_ago_is_forgotten() -> None:
    model = CostModel()
    for index in range(MAX_SHAPES):
        model.observe(key(f"s{index}"), work(1 + index), 1.0)
    model.observe(key("s0"), work(1), 1.0)
    model.observe(key("one more"), work(1), 1.0)
    assert model.num_measured(key("s0"), work(1))
    assert not model.num_measured(key("s1"), work(2))
    assert len(tuple(model.measured())) == MAX_SHAPES


# Properties.


def noisy(drawn: random.Random, seconds: float) -> float:
    return seconds * (1 + drawn.uniform(-NOISE, NOISE))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.floats(1e-5, 1e3), st.integers(15, 60))
def test_outliers_change_little(seed: int, seconds: float, num: int) -> None:
    """One measurement in five is ten times as long, wherever it falls."""
    drawn, model = random.Random(seed), CostModel()
    for block in range(num // 5):
        outlier = drawn.randrange(5)
        for index in range(5):
            scale = 10.0 if index == outlier else 1.0
            model.observe(key(), work(1), scale * noisy(drawn, seconds))
        if block >= 2:
            assert model.predict(key(), work(1)) == pytest.approx(seconds, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_shapes_that_are_wrong_change_little_elsewhere(seed: int) -> None:
    """One shape in five was only ever met by outliers."""
    drawn, model = random.Random(seed), CostModel()
    sizes = [2.0**exponent for exponent in range(-5, 6)]
    wrong = drawn.sample(sizes[::2], k=2)
    for _ in range(WINDOW):
        for size in sizes:
            if size not in wrong:
                model.observe(key(f"s{size}"), work(size), noisy(drawn, 0.01 + 0.1 * size))
    for size in wrong:
        model.observe(key(f"s{size}"), work(size), 10 * (0.01 + 0.1 * size))
    for size in sizes:
        if size not in wrong:
            seconds = 0.01 + 0.1 * size
            assert model.predict(key(f"s{size}"), work(size)) == pytest.approx(seconds, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.5, 2.0]), st.integers(1, 40))
def test_a_drift_is_followed_within_nine(seed: int, factor: float, before: int) -> None:
    drawn, model = random.Random(seed), CostModel()
    for _ in range(before):
        model.observe(key(), work(1), noisy(drawn, 1.0))
    for _ in range(9):
        model.observe(key(), work(1), noisy(drawn, factor))
    assert model.predict(key(), work(1)) == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_shapes_that_did_not_run_follow_the_device(factor: float) -> None:
    drawn, model, sizes = random.Random(1), CostModel(), (1, 2, 3, 5, 8)
    for _ in range(WINDOW):
        for size in sizes:
            model.observe(key(f"s{size}"), work(size), noisy(drawn, 0.1 * size))
    for _ in range(12):
        for size in sizes[:2]:
            model.observe(key(f"s{size}"), work(size), noisy(drawn, factor * 0.1 * size))
    for size in (*sizes, 4):
        assert model.predict(key(f"s{size}"), work(size)) == pytest.approx(
            factor * 0.1 * size, rel=0.1
        )
    kept = CostModel(measured=model.measured())
    assert kept.predict(key("s8"), work(8)) == pytest.approx(factor * 0.8, rel=0.1)


def test_what_takes_less_than_a_millisecond_tells_no_pace() -> None:
    model = told(CostModel(), key(), work(1), 1.0, WINDOW)
    told(model, key(op="short"), work(1), 1e-4, WINDOW)
    told(model, key(op="short"), work(1), 9e-4, WINDOW)
    assert model.predict(key(), work(1)) == pytest.approx(1.0)


amounts = st.floats(allow_nan=True, allow_infinity=True)
works = st.builds(OpWork, flops=amounts, weight_bytes=amounts, activation_bytes=amounts)
keys = st.builds(key, st.sampled_from("abcdefgh"), op=st.sampled_from(["x", "y"]))
told_of = st.lists(st.tuples(keys, works, amounts), max_size=30)


@settings(max_examples=40, deadline=None)
@given(told_of, keys, works)
def test_a_prediction_is_above_zero_and_finite_whatever_was_said(
    history: list[tuple[CostKey, OpWork, float]], k: CostKey, w: OpWork
) -> None:
    model = CostModel()
    for entry in history:
        model.observe(*entry)
    assert 0.0 < model.predict(k, w) < math.inf
    for other, measured, _ in history:
        assert 0.0 < model.predict(other, measured) < math.inf
    assert all(0.0 < s < math.inf for entry in model.measured() for s in entry.seconds)


@settings(max_examples=40, deadline=None)
@given(told_of)
def test_the_same_history_gives_the_same_predictions(
    history: list[tuple[CostKey, OpWork, float]],
) -> None:
    one, other = CostModel(), CostModel()
    for entry in history:
        one.observe(*entry)
        other.observe(*entry)
        one.predict(key("z"), work(1))  # asking changes nothing
    assert one.predict(key("a"), work(2)) == other.predict(key("a"), work(2))


def curves() -> Iterator[tuple[float, float, float]]:
    yield 0.01, 1e-10, 0.0
    yield 0.0, 2e-11, 1e-9
    yield 0.002, 0.0, 3e-8


@pytest.mark.parametrize("curve", list(curves()))
def test_held_out_shapes_of_noisy_curves(curve: tuple[float, float, float]) -> None:
    fixed, per_flop, per_byte = curve
    drawn, model, errors = random.Random(5), CostModel(), []

    def seconds(w: OpWork) -> float:
        return fixed + per_flop * w.flops + per_byte * w.num_bytes

    sizes = [1.5**exponent for exponent in range(12)]
    for _ in range(5):
        for size in sizes[::2]:
            model.observe(key(f"s{size}"), work(size), noisy(drawn, seconds(work(size))))
    for size in sizes[1::2]:
        predicted = model.predict(key(f"s{size}"), work(size))
        errors.append(abs(predicted / seconds(work(size)) - 1))
    assert median(errors) < 0.05
    assert max(errors) < 0.15
