"""Recorded calls give equal bits with grad, and gradients reach every parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import pytest
import torch

from ostinato.card import Determinism, ModelSource
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.reentry import reentry
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.runtime import ResidentModel
from support.requests import replace_op
from support.subjects import Faulty, with_parity

Outputs = Mapping[str, object]


def other_with_grad(amount: float) -> Callable[[ResidentModel], None]:
    """Predict a little more while autograd records."""

    def fault(resident: ResidentModel) -> None:
        op = resident.component("transformer").op("predict")

        def predict(**inputs: torch.Tensor) -> Outputs:
            outputs = op(**inputs)
            factor = 1.0 + torch.is_grad_enabled() * amount
            return {"prediction": outputs["prediction"] * factor}  # type: ignore[operator]

        replace_op(resident, "transformer", "predict", predict)

    return fault


@pytest.mark.parametrize(("amount", "passed"), [(1e-6, True), (1e-3, False)])
def test_a_card_that_promises_a_tolerance_is_held_to_it(
    builtin: Subject, builtin_source: ModelSource, amount: float, passed: bool
) -> None:
    source = with_parity(builtin_source, output_determinism=Determinism.TOLERANCE)
    subject = Faulty(source, other_with_grad(amount))
    subject.recorded = builtin.recorded  # type: ignore[misc]
    result = reentry(subject)
    assert result.passed is passed, result.message
    assert passed == ("are within tolerance with grad" in result.message)


def test_reentry_passes_and_bites(builtin: Subject, builtin_source: ModelSource) -> None:
    result = reentry(builtin)
    assert result.passed, result.message
    assert f"{result.measured} outputs of" in result.message
    assert "gradients reach all 69 parameters" in result.message

    def without_grad(resident: ResidentModel) -> None:
        op = resident.component("transformer").op("predict")
        replace_op(resident, "transformer", "predict", torch.no_grad()(op))

    result = reentry(Faulty(builtin_source, without_grad))
    assert not result.passed
    assert "no gradient, or only zero, reached" in result.message

    result = reentry(Faulty(builtin_source, other_with_grad(1e-6)))
    assert not result.passed
    assert "'out.prediction'" in result.message
    card = builtin_source.card
    loops = (dataclasses.replace(card.loops[0], binds={"latents": "codec"}),)
    empty = dataclasses.replace(builtin_source, card=dataclasses.replace(card, loops=loops))
    subject = Subject(empty, VerifyOptions(quick=True))
    subject.recorded = builtin.recorded  # type: ignore[misc]
    with pytest.raises(NothingMeasured, match="no call of"):
        reentry(subject)


def test_calls_that_give_nothing_are_red(builtin: Subject, builtin_source: ModelSource) -> None:
    """What is inside them was recorded once and not again, so it is no measurement."""

    def silence(resident: ResidentModel) -> None:
        for op in ("encode_text", "predict", "store"):
            replace_op(resident, "transformer", op, lambda **inputs: {})

    run, subject = builtin.recorded, Faulty(builtin_source, silence)
    calls = tuple(dataclasses.replace(call, outputs={}) for call in run.calls)
    subject.recorded = dataclasses.replace(run, calls=calls)  # type: ignore[misc]
    assert any(call.taps for call in calls)
    with pytest.raises(NothingMeasured, match="nothing was compared"):
        reentry(subject)
