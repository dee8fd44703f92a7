"""Guidance: which branches run, in how many calls, and how they combine."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.card import GuidanceForm
from ostinato.errors import InvalidCard
from ostinato.loop.policies.guidance import (
    Branch,
    branch_calls,
    branch_predictions,
    branches,
    guidance_rule,
)
from ostinato.work import WorkResult

COND, UNCOND = Branch.COND, Branch.UNCOND
TWO_BRANCHES = (GuidanceForm.TWO_FORWARD, GuidanceForm.BATCHED)
INPUTS = {COND: {"prompt_embeds": "positive"}, UNCOND: {"prompt_embeds": "negative"}}


@pytest.mark.parametrize("form", GuidanceForm)
def test_guidance_one_is_one_branch_whatever_the_form(form: GuidanceForm) -> None:
    assert branches(form, 1.0) == (COND,)


@pytest.mark.parametrize("form", GuidanceForm)
def test_above_one_the_forms_with_two_branches_run_two(form: GuidanceForm) -> None:
    expected = (COND, UNCOND) if form in TWO_BRANCHES else (COND,)
    assert branches(form, 1.5) == expected


def test_two_forward_is_a_call_a_branch() -> None:
    calls = branch_calls(GuidanceForm.TWO_FORWARD, "net", "predict", {"t": 1}, INPUTS)
    assert [(c.call_id, dict(c.inputs)) for c in calls] == [
        ("cond", {"t": 1, "prompt_embeds": "positive"}),
        ("uncond", {"t": 1, "prompt_embeds": "negative"}),
    ]
    assert {(c.component, c.op) for c in calls} == {("net", "predict")}


def test_batched_is_one_call_with_a_tuple_in_branch_order() -> None:
    (call,) = branch_calls(GuidanceForm.BATCHED, "net", "predict", {"t": 1}, INPUTS)
    assert call.inputs == {"t": 1, "prompt_embeds": ("positive", "negative")}


@pytest.mark.parametrize("form", GuidanceForm)
def test_one_branch_is_one_plain_call(form: GuidanceForm) -> None:
    only = {COND: INPUTS[COND]}
    (call,) = branch_calls(form, "net", "predict", {"t": 1}, only)
    assert call.inputs == {"t": 1, "prompt_embeds": "positive"}


def test_embedded_hands_the_scale_over() -> None:
    scale = torch.tensor([4.0])
    only = {COND: INPUTS[COND]}
    (call,) = branch_calls(GuidanceForm.EMBEDDED, "net", "predict", {}, only, scale)
    assert call.inputs["guidance"] is scale


def test_predictions_are_taken_apart_in_branch_order() -> None:
    one, other = torch.ones(1, 2), torch.zeros(1, 2)
    order = (COND, UNCOND)
    batched = WorkResult(outputs={"batched": {"prediction": torch.cat([one, other])}})
    apart = WorkResult(outputs={"cond": {"prediction": one}, "uncond": {"prediction": other}})
    for form, result in ((GuidanceForm.BATCHED, batched), (GuidanceForm.TWO_FORWARD, apart)):
        found = branch_predictions(form, order, result, "prediction")
        assert list(found) == [COND, UNCOND]
        assert torch.equal(found[COND], one)
        assert torch.equal(found[UNCOND], other)


RULE = guidance_rule("classifier_free")
LATENTS = torch.zeros(1, 8)


def combine(scale: float, cond: torch.Tensor, uncond: torch.Tensor) -> torch.Tensor:
    prediction, state = RULE.combine({COND: cond, UNCOND: uncond}, scale, LATENTS, 1.0, "memory")
    assert state == "memory"
    return prediction


@given(st.floats(1.0, 20.0))
def test_classifier_free(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    cond, uncond = torch.randn(2, 1, 8, generator=generator)
    kept = cond.clone(), uncond.clone()
    found = combine(scale, cond, uncond)
    assert torch.equal(found, uncond + scale * (cond - uncond))
    assert torch.equal(cond, kept[0])
    assert torch.equal(uncond, kept[1])
    assert torch.equal(combine(scale, cond, cond), cond)


def test_a_single_branch_is_returned_as_it_is() -> None:
    cond = torch.ones(1, 8)
    prediction, _ = RULE.combine({COND: cond}, 5.0, LATENTS, 1.0, None)
    assert prediction is cond


def test_an_unknown_rule() -> None:
    with pytest.raises(InvalidCard, match=r"'apg'; valid: \['classifier_free'\]"):
        guidance_rule("apg")
