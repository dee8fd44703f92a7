"""Forwards shared outside the exact rules stay within what a card declares, or the gate is red."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch

from ostinato.backend.batch_rules import ToleranceRules
from ostinato.card import ModelSource
from ostinato.models.builtin.components import BuiltinTransformer
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.fast import fast
from ostinato.parity.ladder import OwedGate, owed_gates, run_gate
from ostinato.parity.subject import Subject
from ostinato.runtime import ResidentModel
from support.subjects import QUICK, Faulty, with_parity

Items = Sequence[Mapping[str, torch.Tensor]]


def declaring(source: ModelSource, tolerance: float | None) -> ModelSource:
    declared = {} if tolerance is None else {"float32": tolerance}
    return with_parity(source, fast_batch_tolerances=declared)


def gate(source: ModelSource) -> OwedGate:
    return next(each for each in owed_gates(source.card, QUICK) if each.name == "fast")


@pytest.mark.parametrize(("family", "least"), [("builtin", [64, 64, 1]), ("wan", [16, 16, 1])])
def test_what_a_family_declares_holds(
    family: str, least: list[int], request: pytest.FixtureRequest
) -> None:
    subject: Subject = request.getfixturevalue(family)
    result = fast(subject)
    assert result.passed, result.message
    assert result.measured == 2 * (2 + 4)
    tolerance = subject.card.fast_batch_tolerance
    assert tolerance is not None
    assert 0.0 <= result.worst_relative_error <= tolerance
    assert f"latents are within {tolerance:g} of those made alone" in result.message
    assert result.detail["fast_steps"] > 0  # type: ignore[operator]
    alone_s, fast_s = (result.detail[name] for name in ("alone_s_per_item", "fast_s_per_item"))
    assert result.detail["fast_over_alone"] == pytest.approx(fast_s / alone_s)  # type: ignore[operator]
    assert result.detail["timed_size"] == least
    if family == "wan":  # one token a request, which no exact rules allow
        assert result.detail["exact_rules_allow_it"] is False
    assert f"takes {result.detail['fast_over_alone']:.2f} of 8 calls" in result.message


def test_a_card_that_declares_nothing_is_held_to_bytes_and_says_so(
    builtin_source: ModelSource,
) -> None:
    result = fast(Subject(declaring(builtin_source, None), QUICK))
    assert result.passed, result.message
    assert result.variants == result.variants_equal == result.measured == 4
    assert "not offered: the card declares no tolerance in float32" in result.message


def test_two_timesteps_that_change_places_in_a_stack_are_red(builtin_source: ModelSource) -> None:
    def fault(resident: ResidentModel) -> None:
        component = resident.component("transformer")
        assert isinstance(component, BuiltinTransformer)
        stacked = component._stacked

        def swapped(name: str, items: Items) -> Sequence[Mapping[str, object]]:
            if name == "predict" and len(items) > 1:
                first, second, *others = items
                times = first["timestep"], second["timestep"]
                items = [
                    {**first, "timestep": times[1]},
                    {**second, "timestep": times[0]},
                    *others,
                ]
            return stacked(name, items)

        component._stacked = swapped  # type: ignore[method-assign]

    result = fast(Faulty(builtin_source, fault))
    assert not result.passed
    assert result.measured > 0


def off_by(relative: float, source: ModelSource) -> Subject:
    """Have every stack, and nothing that runs alone, give values that are off by so much."""

    def fault(resident: ResidentModel) -> None:
        component = resident.component("transformer")
        assert isinstance(component, BuiltinTransformer)
        stacked = component._stacked

        def scaled(name: str, items: Items) -> Sequence[Mapping[str, object]]:
            outputs = stacked(name, items)
            if name != "predict":
                return outputs
            return [{"prediction": each["prediction"] * (1 + relative)} for each in outputs]  # type: ignore[operator]

        component._stacked = scaled  # type: ignore[method-assign]

    return Faulty(source, fault)


def test_a_tolerance_that_is_too_small_is_red(builtin_source: ModelSource) -> None:
    result = fast(off_by(1e-3, declaring(builtin_source, 1e-6)))
    assert not result.passed
    assert result.worst_relative_error > 1e-6
    assert "latents are within 1e-06 of those made alone, the worst" in result.message


def test_nothing_stacked_is_red(builtin_source: ModelSource) -> None:
    def fault(resident: ResidentModel) -> None:
        component = resident.component("transformer")
        component.op_stacked = lambda name, rules: lambda items: None  # type: ignore[attr-defined]

    with pytest.raises(NothingMeasured, match="no forward was shared at 64x64"):
        fast(Faulty(builtin_source, fault))


@pytest.mark.parametrize("tolerance", [math.nan, math.inf, -1e-6])
def test_what_is_no_tolerance_is_red_before_anything_is_served(
    builtin_source: ModelSource, tolerance: float
) -> None:
    source = declaring(builtin_source, tolerance)
    result = run_gate(gate(source), Subject(source, QUICK))
    assert not result.passed
    assert result.measured == 0
    assert f"declares a fast batch tolerance of {tolerance!r}; expected a finite" in result.message


def test_a_card_is_not_offered_what_it_did_not_declare(
    builtin_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that batched fast all the same is seen by its steps, even with equal bytes."""
    rules = ToleranceRules(dtype=torch.float32)
    monkeypatch.setattr("ostinato.runtime.turns.Turns._rules_of", lambda *_: rules)
    result = fast(Subject(declaring(builtin_source, None), QUICK))
    assert not result.passed
    assert result.detail["fast_steps"] > 0  # type: ignore[operator]
