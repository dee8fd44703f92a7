"""What a request may ask: every refusal is typed, says what to do, and comes before any weight."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from ostinato.card import ModelCard
from ostinato.errors import InvalidRequest, RecipeMismatch, UnsupportedTask
from ostinato.models.builtin.card import open_builtin
from ostinato.request import ImagePart, LatentPart, Request
from ostinato.runtime.resolve import resolve
from ostinato.tasks import OutputName, RequestId, TaskType


@pytest.fixture(scope="module")
def card(tiny_builtin_folder: Path) -> ModelCard:
    return open_builtin(tiny_builtin_folder).card


class Shaped:
    """An array by its shape alone."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def ask(card: ModelCard, **fields: object) -> None:
    base = {"model": card.model_id, "task": "text_to_video", "prompt": "a red circle"}
    resolve(card, Request.build(**{**base, **fields}), RequestId("r1"))


def test_defaults_are_filled_in_from_the_card(card: ModelCard) -> None:
    request = Request(model=card.model_id, task="text_to_video", prompt="a red circle")
    spec = resolve(card, request, RequestId("r1"))
    assert (spec.height, spec.width, spec.num_frames) == (64, 64, 96)
    assert spec.sampler == "euler"
    assert spec.guidance_scale == card.defaults.guidance_scale
    assert spec.flow_shift == card.defaults.flow_shift
    assert spec.outputs == (OutputName.VIDEO,)
    assert spec.task is TaskType.TEXT_TO_VIDEO


@pytest.mark.parametrize("task", ["image_to_video", "text_to_image", "make_coffee"])
def test_a_task_that_the_card_does_not_list_is_refused(card: ModelCard, task: str) -> None:
    with pytest.raises(UnsupportedTask, match=r"serves: text_to_video"):
        ask(card, task=task)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("height", 17, "nearest: 64"),
        ("height", 64.0, "whole number"),
        ("width", 0, "exactly 64"),
        ("num_frames", 0, "1 to"),
        ("num_frames", -1, "nearest: 1"),
        ("num_frames", 10**9, "nearest: 57600"),
        ("num_frames", True, "whole number"),
        ("num_inference_steps", 0, "1 to 200"),
        ("prompt", "", "some words"),
        ("prompt", "  \n", "some words"),
        ("guidance_scale", math.nan, "finite"),
        ("guidance_scale", math.inf, "finite"),
        ("guidance_scale", 0.5, "at least 1.0"),
        ("guidance_scale", "3", "finite"),
        ("flow_shift", 0.0, "above 0"),
        ("flow_shift", math.nan, "finite"),
        ("sampler", "ddim", "valid: euler, renoise"),
        ("seed", -1, "from 0"),
        ("seed", 2**63, "from 0"),
        ("seed", 1.5, "whole number"),
        ("fps", 0, "more than 0"),
        ("fps", math.nan, "more than 0"),
        ("deadline_s", 0, "above 0"),
        ("priority", "high", "whole number"),
        ("outputs", (), "empty"),
        ("outputs", ("hologram",), "'hologram'"),
        ("outputs", ("video", "video"), "repeats"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_to_do(
    card: ModelCard, field: str, value: object, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        ask(card, **{field: value})
    assert says in str(caught.value)


def test_all_errors_are_reported_at_once(card: ModelCard) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(card, height=17, num_frames=0, guidance_scale=math.nan)
    assert all(name in str(caught.value) for name in ("height", "num_frames", "guidance_scale"))


def test_inputs_of_an_unlisted_modality_are_refused(card: ModelCard) -> None:
    with pytest.raises(InvalidRequest, match="modality 'image'"):
        ask(card, inputs=(ImagePart(pixels=Shaped(64, 64, 3)),))
    with pytest.raises(InvalidRequest, match="modality 'latent'"):
        ask(card, inputs=(LatentPart(latents=Shaped(1, 16, 3, 8, 8)),))


def four_step(card: ModelCard) -> ModelCard:
    """A distilled variant: four steps of one sampler, guidance folded in."""
    pinned = dataclasses.replace(
        card.recipe.assumes_schedule,
        num_inference_steps=(4,),
        sampler="renoise",
        guidance_scale=1.0,
        flow_shift=3.0,
    )
    return card.derive(
        model_id="builtin-4step",
        recipe=dataclasses.replace(card.recipe, method="distilled", assumes_schedule=pinned),
        capabilities=dataclasses.replace(card.capabilities, samplers=("renoise",)),
        defaults=dataclasses.replace(
            card.defaults, num_inference_steps=4, guidance_scale=1.0, flow_shift=3.0
        ),
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_inference_steps", 50),
        ("guidance_scale", 2.0),
        ("flow_shift", 5.0),
        ("sampler", "euler"),
    ],
)
def test_a_request_that_contradicts_the_recipe_is_refused(
    card: ModelCard, field: str, value: object
) -> None:
    with pytest.raises(RecipeMismatch, match=field):
        ask(four_step(card), **{field: value})


def test_a_request_that_repeats_the_recipe_is_served(card: ModelCard) -> None:
    ask(four_step(card), num_inference_steps=4, guidance_scale=1.0, flow_shift=3.0)
