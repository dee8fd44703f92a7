"""A comparison sees what is beyond, missing, additional or of another shape, in order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ostinato.errors import BadInput
from ostinato.loop.observe import Unit
from ostinato.parity.aligner import CallRecord, TapValue
from ostinato.parity.compare import Verdict, compare_call, compare_exact, first_divergence
from ostinato.parity.gate import NothingMeasured, Rung, Tally
from ostinato.parity.tolerances import (
    EXACT,
    Tolerance,
    measure,
    tap_tolerance,
    trajectory_tolerance,
)
from ostinato.tasks import RequestId

U = 2.0**-24


def record(*taps: tuple[str, torch.Tensor], **outputs: object) -> CallRecord:
    counts: dict[str, int] = {}
    values = []
    for name, value in taps:
        values.append(TapValue(name=name, occurrence=counts.get(name, 0), value=value))
        counts[name] = counts.get(name, 0) + 1
    return CallRecord(
        unit=Unit(RequestId("r1"), "denoise", 3),
        call_id="cond",
        component="transformer",
        op="predict",
        inputs={},
        outputs=outputs,
        taps=tuple(values),
    )


ONE = torch.ones(4)
TRUTH = record(("a", ONE), ("b", ONE), ("b", 2 * ONE), y=ONE)


def test_equal_records_agree_value_by_value() -> None:
    compared = list(compare_call(TRUTH, TRUTH))
    assert [(c.tap, c.occurrence) for c in compared] == [("a", 0), ("b", 0), ("b", 1), ("out.y", 0)]
    assert first_divergence(compared) is None


def test_the_first_value_beyond_its_tolerance_is_named() -> None:
    moved = ONE + torch.tensor([0.0, 0.0, 1e-3, 0.0])
    found = record(("a", ONE), ("b", ONE), ("b", 2 * ONE + 1e-3), y=moved)
    first = first_divergence(compare_call(found, TRUTH))
    assert first is not None
    assert (first.tap, first.occurrence, first.verdict) == ("b", 1, Verdict.BEYOND)
    assert "tap 'b' (occurrence 1) of transformer.predict, step 3 of node 'denoise'" in (
        first.describe()
    )
    assert first.errors is not None
    assert first.errors.largest == pytest.approx(5e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("found", "tap", "verdict"),
    [
        (record(("a", ONE), ("b", ONE), y=ONE), "b", Verdict.MISSING),
        (record(("a", ONE), ("b", ONE), ("b", 2 * ONE), ("c", ONE), y=ONE), "c", "additional"),
        (record(("a", ONE[:3]), ("b", ONE), ("b", 2 * ONE), y=ONE), "a", Verdict.SHAPE),
        (record(("a", ONE), ("b", ONE), ("b", 2 * ONE)), "out.y", Verdict.MISSING),
        (record(("a", ONE * math.nan), ("b", ONE), ("b", 2 * ONE), y=ONE), "a", Verdict.BEYOND),
    ],
)
def test_what_cannot_be_subtracted_diverges(found: CallRecord, tap: str, verdict: str) -> None:
    first = first_divergence(compare_call(found, TRUTH))
    assert first is not None
    assert (first.tap, first.verdict) == (tap, verdict)


def test_exact_means_every_bit() -> None:
    found = record(("a", ONE), ("b", ONE), ("b", 2 * ONE), y=ONE * (1 + 2 * U))
    assert first_divergence(compare_call(found, TRUTH)) is None
    first = first_divergence(compare_exact(found, TRUTH))
    assert first is not None
    assert first.tap == "out.y"


@pytest.mark.parametrize(
    ("found", "expected", "verdict"),
    [
        (torch.tensor([-0.0]), torch.tensor([0.0]), Verdict.BEYOND),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), Verdict.DTYPE),
        (torch.ones(2), torch.ones(2, dtype=torch.bfloat16), Verdict.DTYPE),
        (torch.tensor([math.nan]), -torch.tensor([math.nan]), Verdict.BEYOND),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), Verdict.WITHIN),
        (np.ones(2, np.uint8), np.array([1, 2], np.uint8), Verdict.BEYOND),
        ("red", "blue", Verdict.BEYOND),
        ("red", "red", Verdict.WITHIN),
        (("a", ("b",)), ("a", ("c",)), Verdict.BEYOND),
        (0.0, -0.0, Verdict.BEYOND),
        (1, 1.0, Verdict.KIND),
        (None, ONE, Verdict.KIND),
        ((), (ONE,), Verdict.ADDITIONAL),
        ((ONE,), (ONE, 3), Verdict.MISSING),
    ],
)
def test_exact_means_bytes_dtypes_and_what_is_no_tensor(
    found: object, expected: object, verdict: Verdict
) -> None:
    compared = list(compare_exact(record(y=found), record(y=expected)))
    first = first_divergence(compared)
    assert (Verdict.WITHIN if first is None else first.verdict) is verdict


def test_a_key_that_either_side_lacks_diverges() -> None:
    for found, expected in (
        (record(y=ONE, z="a"), record(y=ONE)),
        (record(y=ONE), record(y=ONE, z="a")),
    ):
        first = first_divergence(compare_exact(found, expected))
        assert first is not None
        assert first.tap == "out.z"


def test_an_empty_tensor_is_not_measured() -> None:
    tally = Tally()
    tally.add(compare_exact(record(y=torch.zeros(0, 3)), record(y=torch.zeros(0, 3))))
    with pytest.raises(NothingMeasured):
        tally.result("reload", Rung.C0, "all is well")


def test_what_diverged_is_kept_whatever_came_before_or_after() -> None:
    loose, tight = (Tolerance(largest=b, rms=b, reason="") for b in (0.5, 1e-6))
    far, near = record(("a", ONE * 1.4)), record(("a", ONE + 1e-3))
    truth, nan = record(("a", ONE)), record(("a", ONE * math.nan))
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        tally = Tally()
        for index in order:
            found, bound = ((far, loose), (near, tight), (nan, loose))[index]
            tally.add(compare_call(found, truth, lambda *given, bound=bound: bound))
        (kept,) = tally.result("components", Rung.C0, "all is well").comparisons
        assert kept.errors is not None
        assert math.isnan(kept.errors.largest)
        assert tally.worst_relative_error == math.inf
    tally = Tally()
    for found, bound in ((near, tight), (far, loose)):
        tally.add(compare_call(found, truth, lambda *given, bound=bound: bound))
    (kept,) = tally.result("components", Rung.C0, "all is well").comparisons
    assert kept.diverged


def test_both_bounds_count_in_how_severe_a_comparison_is() -> None:
    bound = Tolerance(largest=1.0, rms=1e-3, reason="")
    (found,) = compare_call(record(y=ONE * 1.01), record(y=ONE), lambda *given: bound)
    assert found.severity == (True, pytest.approx(10.0, rel=1e-3))


def test_errors_are_relative_to_the_taps_own_scale() -> None:
    errors = measure(torch.tensor([0.0, 101.0]), torch.tensor([0.0, 100.0]))
    assert (errors.absolute, errors.largest) == (1.0, 0.01)
    assert errors.rms == pytest.approx(0.01)
    assert measure(torch.ones(2), torch.zeros(2)).largest == math.inf
    assert not tap_tolerance("a", 0, torch.float32).allows(measure(ONE * math.nan, ONE))
    assert EXACT.allows(measure(ONE, ONE))


def test_tolerances_grow_with_depth_and_say_why() -> None:
    near, far = (tap_tolerance("a", depth, torch.float32) for depth in (0, 8))
    assert far.largest == pytest.approx(3 * near.largest)
    assert near.largest < 2e-6
    angle = tap_tolerance("condition_embedder.time_embedder", 2, torch.float32)
    assert "angle" in angle.reason
    levels = tap_tolerance("out.frames", 5, torch.uint8)
    grey = torch.full((4096,), 100, dtype=torch.uint8)
    one_off, many_off, far_off = grey.clone(), grey + 1, grey.clone()
    one_off[0], far_off[0] = 101, 102
    assert levels.allows(measure(one_off, grey))
    assert not levels.allows(measure(many_off, grey))
    assert not levels.allows(measure(far_off, grey))
    assert trajectory_tolerance(torch.uint8) == tap_tolerance("", 0, torch.uint8)


def test_every_floating_dtype_has_its_own_rounding_or_is_refused() -> None:
    halves = [tap_tolerance("a", 0, dtype).largest for dtype in (torch.float16, torch.float32)]
    assert halves[0] == 2**13 * halves[1]
    for tolerance_of in (trajectory_tolerance, lambda dtype: tap_tolerance("a", 0, dtype)):
        with pytest.raises(BadInput, match=r"a value is torch\.float8_e4m3fn, and no tolerance"):
            tolerance_of(torch.float8_e4m3fn)


def test_a_tally_of_nothing_is_no_result() -> None:
    with pytest.raises(NothingMeasured):
        Tally().result("components", Rung.C0, "all is well")
    tally = Tally()
    tally.add(compare_call(record(("a", ONE + 1e-3)), record(("a", ONE))))
    result = tally.result("components", Rung.C0, "all is well")
    assert not result.passed
    assert result.message.startswith("first divergence: tap 'a'")
    assert result.worst_relative_error == pytest.approx(1e-3, rel=1e-3)
