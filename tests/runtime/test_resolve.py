"""What a request may ask: every refusal is typed, says what to do, and comes before any weight."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ostinato.card import ModelCard
from ostinato.errors import InvalidRequest, RecipeMismatch, UnsupportedTask
from ostinato.models.builtin.card import open_builtin
from ostinato.request import GenerationSpec, ImagePart, LatentPart, Request
from ostinato.runtime.resolve import resolve
from ostinato.tasks import Modality, OutputName, RequestId, TaskType


@pytest.fixture(scope="module")
def card(tiny_builtin_folder: Path) -> ModelCard:
    return open_builtin(tiny_builtin_folder).card


class Shaped:
    """An array by its shape alone."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def ask(card: ModelCard, **fields: object) -> GenerationSpec:
    base = {"model": card.model_id, "task": "text_to_video", "prompt": "a red circle"}
    return resolve(card, Request.build(**{**base, **fields}), RequestId("r1"))


def test_defaults_are_filled_in_from_the_card(card: ModelCard) -> None:
    request = Request(model=card.model_id, task="text_to_video", prompt="a red circle")
    spec = resolve(card, request, RequestId("r1"))
    assert (spec.height, spec.width, spec.num_frames) == (64, 64, 96)
    assert spec.sampler == "euler"
    assert spec.guidance_scale == card.defaults.guidance_scale
    assert spec.flow_shift == card.defaults.flow_shift
    assert spec.outputs == (OutputName.VIDEO,)
    assert spec.task is TaskType.TEXT_TO_VIDEO


@pytest.mark.parametrize("task", ["image_to_video", "text_to_image", "make_coffee", 5, None])
def test_a_task_that_the_card_does_not_list_is_refused(card: ModelCard, task: object) -> None:
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
        ("outputs", (["video"],), "['video']"),
        ("inputs", ("x",), "LatentPart"),
        ("guidance_scale", 1001, "at most 1000"),
        ("guidance_scale", True, "finite"),
        ("flow_shift", 1e-4, "from 0.001 to 1000"),
        ("flow_shift", 1e4, "from 0.001 to 1000"),
        ("deadline_s", math.inf, "finite seconds"),
        ("negative_prompt", 5, "expected words"),
        ("negative_prompt", ["a"], "expected words"),
        ("prompt", 5, "some words"),
        ("prompt", "a \ud800", "UTF-8"),
        ("negative_prompt", "\udfff", "UTF-8"),
        ("prompt", "a" * 10_001, "at most 10000"),
        ("sampler", ["euler"], "valid: euler, renoise"),
        ("seed", np.bool_(True), "whole number"),
        ("priority", 1.0, "whole number"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_to_do(
    card: ModelCard, field: str, value: object, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        ask(card, **{field: value})
    assert says in str(caught.value)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("guidance_scale", "at most 1000"),
        ("flow_shift", "from 0.001"),
        ("deadline_s", "above 0"),
        ("fps", "at most 240"),
        ("seed", "from 0"),
        ("height", "nearest: 64"),
        ("num_inference_steps", "1 to 200"),
    ],
)
def test_a_number_that_no_float_holds_or_that_cannot_be_printed_is_refused(
    card: ModelCard, field: str, says: str, digits: int
) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        ask(card, **{field: 10**digits})
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


def test_all_errors_are_reported_at_once(card: ModelCard) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(card, height=17, num_frames=0, guidance_scale=math.nan)
    assert all(name in str(caught.value) for name in ("height", "num_frames", "guidance_scale"))


def test_numpy_numbers_are_taken_and_become_plain_ones(card: ModelCard) -> None:
    spec = ask(
        card,
        seed=np.int64(3),
        num_frames=np.uint8(8),
        num_inference_steps=np.int32(2),
        fps=np.int16(24),
        guidance_scale=np.float32(1.5),
        flow_shift=np.float64(2.0),
        priority=np.int8(1),
        deadline_s=np.float16(4.0),
    )
    assert (spec.seed, spec.num_frames, spec.num_inference_steps) == (3, 8, 2)
    assert (spec.fps, spec.guidance_scale, spec.flow_shift) == (24.0, 1.5, 2.0)
    whole = (spec.seed, spec.num_frames, spec.num_inference_steps)
    assert {type(value) for value in whole} == {int}
    assert {type(value) for value in (spec.fps, spec.guidance_scale, spec.flow_shift)} == {float}


@pytest.fixture
def latent_card(card: ModelCard) -> ModelCard:
    inputs = (*card.capabilities.inputs, Modality.LATENT)
    return card.derive(capabilities=dataclasses.replace(card.capabilities, inputs=inputs))


@pytest.mark.parametrize(
    "latents",
    [
        torch.ones(1, 2, 3, dtype=torch.float64),
        torch.ones(1, 2, 3, dtype=torch.bfloat16, requires_grad=True),
        torch.ones(1, 1, 1).expand(1, 2, 3),
        np.ones((1, 2, 3), dtype=np.float16),
        np.ones((1, 2, 3), dtype=">f4"),
        np.ones((1, 2, 3), dtype=np.float32)[:, ::-1],
    ],
    ids=["float64", "grad", "expanded", "float16", "big-endian", "reversed"],
)
def test_initial_latents_are_copied(
    latent_card: ModelCard, latents: torch.Tensor | np.ndarray
) -> None:
    taken = ask(latent_card, inputs=(LatentPart(latents=latents),)).initial_latents
    assert isinstance(taken, torch.Tensor)
    assert not taken.requires_grad
    assert (taken.dtype, taken.is_contiguous()) == (torch.float32, True)
    mine = latents.detach() if isinstance(latents, torch.Tensor) else latents
    if not isinstance(mine, torch.Tensor) or mine.is_contiguous():
        mine[:] = 0  # the caller goes on to use their own
    assert torch.equal(taken, torch.ones(1, 2, 3))


@pytest.mark.parametrize(
    "latents",
    [
        torch.ones(1, device="meta"),
        torch.ones(2, 2).to_sparse(),
        torch.ones(1, dtype=torch.int64),
        torch.ones(1, dtype=torch.complex64),
        torch.tensor([math.nan]),
        torch.tensor([1e300], dtype=torch.float64),
        np.array([np.inf]),
        np.array([1e300]),
        np.array(["a"]),
        np.array([object()]),
        np.ones(1, dtype=bool),
        [1.0],
        None,
    ],
)
def test_initial_latents_without_finite_numbers_are_refused(
    latent_card: ModelCard, latents: object
) -> None:
    part = LatentPart(latents=latents)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="initial latents"):
        ask(latent_card, inputs=(part,))


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


@pytest.mark.parametrize("field", ["num_inference_steps", "guidance_scale", "sampler"])
def test_a_value_of_no_use_is_refused_where_the_recipe_pins_it(card: ModelCard, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        ask(four_step(card), **{field: np.zeros(2)})


def test_a_request_that_repeats_the_recipe_is_served(card: ModelCard) -> None:
    ask(four_step(card), num_inference_steps=4, guidance_scale=1.0, flow_shift=3.0)
