"""Recorded calls give equal bits with grad, and gradients reach every parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch

from ostinato.card import ModelSource
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.reentry import reentry
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.runtime import ResidentModel
from support.requests import replace_op
from support.subjects import Faulty

Outputs = Mapping[str, object]


def test_reentry_passes_and_bites(builtin: Subject, builtin_source: ModelSource) -> None:
    result = reentry(builtin)
    assert result.passed, result.message
    assert "gradients reach all 69 parameters" in result.message

    def without_grad(resident: ResidentModel) -> None:
        op = resident.component("transformer").op("predict")
        replace_op(resident, "transformer", "predict", torch.no_grad()(op))

    result = reentry(Faulty(builtin_source, without_grad))
    assert not result.passed
    assert "no gradient, or only zero, reached" in result.message

    def other_bits(resident: ResidentModel) -> None:
        op = resident.component("transformer").op("predict")

        def predict(**inputs: torch.Tensor) -> Outputs:
            outputs = op(**inputs)
            factor = 1.0 + torch.is_grad_enabled() * 1e-6
            return {"prediction": outputs["prediction"] * factor}  # type: ignore[operator]

        replace_op(resident, "transformer", "predict", predict)

    result = reentry(Faulty(builtin_source, other_bits))
    assert not result.passed
    assert "'out.prediction'" in result.message
    card = builtin_source.card
    loops = (dataclasses.replace(card.loops[0], binds={"latents": "codec"}),)
    empty = dataclasses.replace(builtin_source, card=dataclasses.replace(card, loops=loops))
    subject = Subject(empty, VerifyOptions(quick=True))
    subject.recorded = builtin.recorded  # type: ignore[misc]
    with pytest.raises(NothingMeasured, match="no call of"):
        reentry(subject)
