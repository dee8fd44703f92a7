"""Requests: declared fields only, typed inputs, nothing inferred."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np
import pytest

from ostinato.errors import BadInput, OstinatoError, UnknownField
from ostinato.request import (
    Event,
    Failed,
    FinalEvent,
    Finished,
    ImagePart,
    LatentPart,
    Request,
    TextPart,
)
from ostinato.tasks import Modality, OutputName, RequestId, TaskType


def test_build_fills_in_nothing() -> None:
    request = Request.build(model="m", task=TaskType.TEXT_TO_VIDEO, prompt="a circle")
    assert request == Request(model="m", task="text_to_video", prompt="a circle")
    assert request.outputs == (OutputName.VIDEO,)
    for name in ("height", "width", "num_frames", "num_inference_steps", "guidance_scale"):
        assert getattr(request, name) is None


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("promt", "prompt"), ("guidance", "guidance_scale"), ("num_frame", "num_frames")],
)
def test_a_misspelt_field_is_refused_with_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownField, match=f"{name}.*did you mean '{suggestion}'"):
        Request.build(model="m", task="text_to_video", prompt="p", **{name: 1})


def test_a_field_that_resembles_none_lists_all() -> None:
    with pytest.raises(UnknownField, match="valid: model, task, prompt"):
        Request.build(model="m", task="text_to_video", prompt="p", zzz=1)


def test_all_unknown_fields_are_named() -> None:
    with pytest.raises(UnknownField, match=r"\['sede', 'hieght'\]"):
        Request.build(sede=1, hieght=2)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(BadInput, match=r"\['task', 'prompt'\]"):
        Request.build(model="m")


def test_outputs_are_a_tuple_and_not_letters() -> None:
    built = Request.build(model="m", task="text_to_video", prompt="p", outputs=["video", "latents"])
    assert built.outputs == ("video", "latents")
    for wrong in ("video", ["video"], None):
        with pytest.raises(BadInput, match=r"outputs is .* expected a tuple"):
            Request(model="m", task="text_to_video", prompt="p", outputs=wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="outputs is 'video'"):
        Request.build(model="m", task="text_to_video", prompt="p", outputs="video")


def test_a_request_is_immutable() -> None:
    request = Request(model="m", task="text_to_video", prompt="p")
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.prompt = "q"  # type: ignore[misc]


def test_parts_say_their_modality_and_cannot_say_another() -> None:
    image, latents = np.zeros((4, 4, 3), np.uint8), np.zeros((1, 4, 1, 2, 2), np.float32)
    inputs = (ImagePart(pixels=image), LatentPart(latents=latents))
    request = Request(model="m", task="image_to_video", prompt="p", inputs=inputs)
    parts = list(request.parts())
    assert parts == [TextPart(text="p"), *inputs]
    assert [part.modality for part in parts] == [Modality.TEXT, Modality.IMAGE, Modality.LATENT]
    with pytest.raises(TypeError, match="modality"):
        ImagePart(pixels=image, modality=Modality.TEXT)  # type: ignore[call-arg]


def test_every_event_says_whose_and_which_and_three_are_final() -> None:
    kinds = get_args(Event)
    for kind in kinds:
        names = [field.name for field in dataclasses.fields(kind)]
        assert names[:2] == ["request_id", "sequence"]
    assert {kind.__name__ for kind in get_args(FinalEvent)} == {"Finished", "Failed", "Cancelled"}
    assert set(get_args(FinalEvent)) < set(kinds)


def test_events_are_values() -> None:
    one = Finished(request_id=RequestId("r1"), sequence=3, device_s=0.5)
    assert one == Finished(request_id=RequestId("r1"), sequence=3, device_s=0.5)
    assert one != Finished(request_id=RequestId("r1"), sequence=4, device_s=0.5)
    error = OstinatoError("x")
    assert Failed(request_id=RequestId("r1"), sequence=0, error=error).error is error
