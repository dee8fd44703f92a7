"""Alternation on a made-up machine: a slowdown is found, the machine's own drift is not."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from ostinato.bench.alternate import MIN_ROUNDS, Ratio, alternate, ratio_of_medians, timed
from ostinato.errors import BadInput

Speed = Callable[[float], float]


class Machine:
    """A clock and a speed that changes with it: what a run costs depends on when it runs."""

    def __init__(self, speed: Speed, noise: float = 0.0) -> None:
        self._speed, self._noise = speed, noise
        self._random = np.random.default_rng(7)
        self.now = 0.0
        self.order: list[str] = []

    def contestant(self, name: str, work: float) -> Callable[[], float]:
        def run() -> float:
            spent = work * self._speed(self.now) * (1 + self._noise * self._random.random())
            self.now += spent
            self.order.append(name)
            return spent

        return run


def compare(speed: Speed, slowdown: float, *, noise: float = 0.01, rounds: int = 20) -> Ratio:
    machine = Machine(speed, noise)
    runs = {"ours": machine.contestant("ours", slowdown), "base": machine.contestant("base", 1.0)}
    seconds = alternate(runs, rounds=rounds, warm_up=1)
    return ratio_of_medians(seconds["ours"], seconds["base"], seed=0)


def steady(now: float) -> float:
    return 1.0


def warming(now: float) -> float:
    return 1.0 + now / 40


def throttled(now: float) -> float:
    return 1.0 if now < 8 else 1.9


@pytest.mark.parametrize("speed", [steady, warming, throttled])
def test_a_slowdown_of_five_percent_is_found(speed: Speed) -> None:
    ratio = compare(speed, 1.05)
    assert 1.0 < ratio.low < 1.05 < ratio.high
    assert ratio.value == pytest.approx(1.05, abs=0.015)


@pytest.mark.parametrize("speed", [steady, warming, throttled])
def test_equals_stay_equal_on_a_machine_that_drifts(speed: Speed) -> None:
    ratio = compare(speed, 1.0)
    assert ratio.low < 1.0 < ratio.high
    assert ratio.value == pytest.approx(1.0, abs=0.015)


def test_runs_one_after_the_other_would_see_the_drift() -> None:
    machine = Machine(warming)
    run = machine.contestant("either", 1.0)
    first, second = ([run() for _ in range(20)] for _ in range(2))
    assert ratio_of_medians(second, first, seed=0).low > 1.2


def test_the_order_turns_round_and_the_warm_up_is_dropped() -> None:
    machine = Machine(steady)
    runs = {name: machine.contestant(name, 1.0) for name in "abc"}
    seconds = alternate(runs, rounds=6, warm_up=2)
    assert "".join(machine.order) == "abccba" * 4
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys("abc", 6)


def test_an_outlier_moves_neither_ratio_nor_interval_far() -> None:
    ours, base = [1.05] * 20, [1.0] * 20
    ours[3] = 30.0
    assert ratio_of_medians(ours, base, seed=0) == Ratio(1.05, 1.05, 1.05)


def test_numbers_of_one_round_are_one_draw() -> None:
    """Fifty steps of a request that met one machine say no more than one of them."""
    random = np.random.default_rng(3)
    ours, base = random.uniform(1.0, 1.3, 20).tolist(), random.uniform(1.0, 1.2, 20).tolist()
    alone = ratio_of_medians(ours, base, seed=0)
    together = ratio_of_medians([[s] * 50 for s in ours], [[s] * 50 for s in base], seed=0)
    assert together == pytest.approx(alone, rel=1e-12)
    apart = ratio_of_medians(ours * 50, base * 50, seed=0)
    assert apart.high - apart.low < (alone.high - alone.low) / 3


def test_the_interval_is_of_the_seed_and_narrows_with_rounds() -> None:
    assert compare(steady, 1.05) == compare(steady, 1.05)
    few, many = (compare(steady, 1.05, noise=0.2, rounds=rounds) for rounds in (8, 80))
    assert many.high - many.low < (few.high - few.low) / 2


def test_nothing_is_collected_within_a_run() -> None:
    enabled: list[bool] = []
    run = timed(lambda: enabled.append(gc.isenabled()))
    alternate({"only": run}, rounds=6, warm_up=0)
    assert enabled == [False] * 6
    assert gc.isenabled()


def test_few_rounds_are_refused() -> None:
    with pytest.raises(BadInput, match=f"at least {MIN_ROUNDS}"):
        alternate({}, rounds=MIN_ROUNDS - 1, warm_up=0)


def test_timed_measures_the_call() -> None:
    assert 0 < timed(lambda: sum(range(1000)))() < 1
