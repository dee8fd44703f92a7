"""The same bytes again, and in company."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
import torch

from ostinato.card import Determinism, ModelSource
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.company import ShuffledTurns, determinism, interleave
from ostinato.parity.subject import Subject
from ostinato.runtime import ResidentModel
from support.requests import replace_op
from support.subjects import Faulty, with_parity

Outputs = Mapping[str, object]


class Forgetful:
    """Adds to each prediction a little of the one before: state on a shared component."""

    def __init__(self, resident: ResidentModel, share: float = 1e-3) -> None:
        op = resident.component("transformer").op("predict")
        before: list[torch.Tensor] = []

        def predict(**inputs: torch.Tensor) -> Outputs:
            prediction = op(**inputs)["prediction"]
            assert isinstance(prediction, torch.Tensor)
            kept = before[0] if before and before[0].shape == prediction.shape else 0.0
            before[:] = [prediction]
            return {"prediction": prediction + share * kept}

        replace_op(resident, "transformer", "predict", predict)


def test_company_passes_and_an_adapter_that_keeps_state_is_red(
    builtin: Subject, builtin_source: ModelSource
) -> None:
    for gate, count in ((determinism, 2), (interleave, 4)):
        result = gate(builtin)
        assert result.passed, result.message
        assert (result.variants, result.variants_equal) == (count, count)
        result = gate(Faulty(builtin_source, Forgetful))
        assert not result.passed
        assert result.variants_equal < count


@pytest.mark.parametrize(("share", "passed"), [(1e-6, True), (3e-2, False)])
def test_a_card_that_promises_a_tolerance_is_held_to_it(
    builtin_source: ModelSource, share: float, passed: bool
) -> None:
    def forget(resident: ResidentModel) -> None:
        Forgetful(resident, share)

    source = with_parity(builtin_source, output_determinism=Determinism.TOLERANCE)
    result = determinism(Faulty(source, forget))
    assert result.passed is passed, result.message
    assert result.variants_equal < result.variants == 2
    assert (result.variants_equal + result.variants_tolerated == 2) is passed
    assert "more are within the tolerance of the card" in result.message
    assert not determinism(Faulty(builtin_source, forget)).passed


def test_requests_that_were_not_interleaved_are_red(
    builtin: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unshuffled(ShuffledTurns):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self._random = Unmoved()

    class Unmoved(random.Random):
        def shuffle(self, x: object) -> None:
            """Leave the order of arrival."""

    monkeypatch.setattr("ostinato.parity.gates.company.ShuffledTurns", Unshuffled)
    with pytest.raises(NothingMeasured, match="were not interleaved"):
        interleave(builtin)
