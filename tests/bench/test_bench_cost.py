"""The judge of predictions, on traces whose times are made up, and one real run."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ostinato.bench import BenchArguments, cost
from ostinato.bench._cost_trace import TracedUnit
from ostinato.loop.cost import PricedCall
from ostinato.work import CostKey, OpWork

ADVANCE_S = 1e-4
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


def unit(size: int, seconds: float, *, items: int = 1) -> TracedUnit:
    call = CostKey("m/net", "predict", f"s{size}", items)
    advance = CostKey("m/node", "advance predict", "one", 1)
    works = OpWork(flops=1e9 * size * items), OpWork(flops=1e3)
    return TracedUnit(
        (PricedCall(call, works[0]), PricedCall(advance, works[1])), (seconds, ADVANCE_S)
    )


def trace(seconds: Callable[[int], float], rounds: int = 20) -> list[TracedUnit]:
    return [unit(size, seconds(size)) for _ in range(rounds) for size in SIZES]


def test_a_steady_line_is_predicted_seen_and_unseen() -> None:
    judged, held_out = cost.judge(trace(lambda size: 0.01 + 0.02 * size), seed=0)
    assert len(judged.units) == 20 * len(SIZES) - cost.WARM_UP
    assert max(each.error for each in judged.units) < 0.01
    assert {each.key.form for each in held_out.units} == {f"s{size}" for size in SIZES}
    assert all(each.held_out for each in (*held_out.units, *held_out.entries))
    assert max(each.error for each in held_out.units) < 0.1


def test_a_unit_is_the_sum_of_its_entries() -> None:
    judged = cost.replay(trace(lambda size: 0.1 * size), frozenset())
    entries = [e for e in judged.entries if e.name == "m/net.predict"]
    for whole, entry in zip(judged.units, entries, strict=True):
        assert whole.actual == pytest.approx(entry.actual + ADVANCE_S)
        assert whole.predicted > entry.predicted


def test_a_shape_that_is_kept_away_is_never_learned() -> None:
    """It takes a hundred times what the others would have it take."""
    odd = CostKey("m/net", "predict", "s4", 1)
    judged = cost.replay(trace(lambda s: 10.0 if s == 4 else 0.025 * s), frozenset({odd}))
    errors = [each.error for each in judged.units if each.held_out]
    assert errors
    assert min(errors) > 0.8
    assert max(each.error for each in judged.units if not each.held_out) < 0.05


def test_folds_keep_each_shape_away_once_and_leave_out_ops_of_few_shapes() -> None:
    folds = cost.folds_of(trace(lambda size: 1.0, rounds=1), seed=3)
    kept_away = [key.form for fold in folds for key in fold]
    assert sorted(kept_away) == sorted(f"s{size}" for size in SIZES)
    assert all(folds)
    assert folds == cost.folds_of(trace(lambda size: 1.0, rounds=1), seed=3)


def test_stacks_are_judged_alone() -> None:
    units = trace(lambda size: 0.1 * size)
    units += [unit(size, 0.15 * size, items=2) for _ in range(9) for size in SIZES]
    judged, held_out = cost.judge(units, seed=0, stacks=True)
    assert {each.key.items for each in (*judged.units, *held_out.units)} == {2}
    (row,) = cost.by_op([e for e in judged.entries if e.key.items > 1], held_out.entries)
    assert row["op"] == "m/net.predict"
    assert row["shapes"] == len(SIZES)


@pytest.mark.slow
def test_a_real_run_says_what_it_measured() -> None:
    report = cost.run(BenchArguments(quick=True, requests=1, seed=0, threads=1))
    assert set(report.targets) <= set(report.figures)
    assert report.figures["units"] > cost.WARM_UP
    assert report.figures["stacks"] > 0
    ops = {row["op"] for row in json.loads(report.to_json())["detail"]["by_op"]}
    assert {"builtin/transformer.predict", "small-wan/transformer.predict"} <= ops
    assert {"small-wan/vae.decode", "builtin/rollout.advance store"} <= ops
