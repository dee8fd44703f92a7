"""Shared forwards give the bytes of each request alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from ostinato.backend.batch_rules import NEVER, BatchRules
from ostinato.card import ModelSource
from ostinato.models.builtin.components import BuiltinTransformer
from ostinato.models.wan.open import open_wan
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates import batch as batch_module
from ostinato.parity.gates.batch import batch
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.runtime import ResidentModel
from support.subjects import QUICK, Faulty, with_parity

Outputs = Mapping[str, object]


@pytest.mark.parametrize("family", ["builtin", pytest.param("wan", marks=pytest.mark.slow)])
def test_the_batch_passes_with_shared_forwards(family: str, request: pytest.FixtureRequest) -> None:
    result = batch(request.getfixturevalue(family))
    assert result.passed, result.message
    assert result.variants == result.variants_equal == 2 + 4
    assert result.detail["stacked_steps"] > 0  # type: ignore[operator]
    names = ("samples_in_one_forward", "samples_in_one_forward_alone")
    wide, narrow = (result.detail[name] for name in names)
    assert wide > narrow  # type: ignore[operator]
    assert result.detail["stock_batch_equal"] is False
    assert result.flags == {"stock_batch_equal": False}
    assert "the library's own batch: not equal" in result.message


@pytest.mark.slow
def test_the_batch_of_a_bfloat16_wan_is_demonstrated_too(
    tiny_wan_folder: Callable[[str], Path],
) -> None:
    source = with_parity(open_wan(tiny_wan_folder("unipc")), num_frames=5)
    card = source.card
    card = dataclasses.replace(
        card,
        precision=dataclasses.replace(card.precision, weights="bfloat16"),
        recipe=dataclasses.replace(card.recipe, assumes_precision="bfloat16"),
    )
    result = batch(Subject(dataclasses.replace(source, card=card), QUICK))
    assert result.passed, result.message
    assert "this model computes in bfloat16" in result.message
    assert result.detail["stock_batch_equal"] is not None


def shows(module: object, samples: Sequence[object]) -> torch.Tensor:
    """A batch that always equals its samples."""
    del module
    return torch.zeros(len(samples))


def breaks(module: object, samples: Sequence[object]) -> torch.Tensor:
    raise ZeroDivisionError("no such forward")


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (shows, "equal at every size, so nothing here shows that this gate bites"),
        (breaks, "could not run: ZeroDivisionError: no such forward"),
        (lambda module, samples: None, "could not run: it is not known how"),
    ],
)
def test_without_a_library_batch_that_differs_the_gate_is_red_and_says_why(
    builtin: Subject,
    monkeypatch: pytest.MonkeyPatch,
    forward: Callable[..., torch.Tensor | None],
    told: str,
) -> None:
    monkeypatch.setattr(batch_module, "library_forward", forward)
    result = batch(builtin)
    assert not result.passed
    assert result.variants == result.variants_equal == 2 + 4
    assert told in result.message


def test_an_op_that_depends_on_its_batch_is_red(builtin_source: ModelSource) -> None:
    def fault(resident: ResidentModel) -> None:
        component = resident.component("transformer")
        assert isinstance(component, BuiltinTransformer)
        stacked = component._stacked

        def leak(name: str, items: Sequence[Mapping[str, torch.Tensor]]) -> Sequence[Outputs]:
            outputs = stacked(name, items)
            if name == "predict" and len(items) > 1:
                return [{"prediction": o["prediction"] * (1 + 1e-6)} for o in outputs]  # type: ignore[operator]
            return outputs

        component._stacked = leak  # type: ignore[method-assign]

    result = batch(Faulty(builtin_source, fault))
    assert not result.passed
    assert result.variants_equal < result.variants == 2 + 4


def alone_only(resident: ResidentModel) -> None:
    """Stack nothing, whatever the rules."""
    component = resident.component("transformer")
    assert isinstance(component, BuiltinTransformer)
    component.op_stacked = lambda name, rules: (
        lambda items: [  # type: ignore[method-assign]
            component.op(name)(**inputs) for inputs in items
        ]
    )


def test_nothing_stacked_is_red_where_the_rules_allow_it(builtin_source: ModelSource) -> None:
    with pytest.raises(NothingMeasured, match="although the batch rules of this processor allow"):
        batch(Faulty(builtin_source, alone_only))


def test_nothing_stacked_passes_by_name_where_the_rules_forbid_it(
    builtin_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = BatchRules(
        linear_rows=NEVER,
        activation_multiple=1,
        attention=True,
        norms=True,
    )
    monkeypatch.setattr("ostinato.runtime.turns.probe_batch_rules", lambda: never)
    monkeypatch.setattr(batch_module, "probe_batch_rules", lambda: never)
    result = batch(Subject(builtin_source, VerifyOptions(quick=True)))
    assert result.passed
    assert "not stacked here: the batch rules measured on this processor forbid it" in (
        result.message
    )
    assert f"linear_rows={NEVER}" in result.message
