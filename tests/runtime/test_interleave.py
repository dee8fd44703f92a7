"""The interleave gate: requests interleaved step by step give the same bytes as each alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.api import Engine
from ostinato.models.builtin.card import open_builtin
from ostinato.models.registry import open_model
from ostinato.request import Request
from ostinato.runtime import Output
from support.turns import RandomTurns

BUILTIN = tuple(
    Request(
        model="builtin",
        task="text_to_video",
        prompt=prompt,
        negative_prompt=negative,
        seed=seed,
        num_frames=num_frames,
        num_inference_steps=steps,
        guidance_scale=scale,
        sampler=sampler,
        outputs=("video", "latents"),
    )
    for prompt, negative, seed, num_frames, steps, scale, sampler in (
        ("a red circle bouncing on a navy background", None, 1, 30, 3, 2.0, "euler"),
        ("blue ring standing still, gray background", None, 2, 12, 1, 1.0, "euler"),
        ("a green square moving left", "a red circle", 2, 24, 2, 4.0, "renoise"),
        ("a yellow triangle rising on a white background", None, 3, 96, 1, 1.0, "renoise"),
        ("a pink diamond falling", None, 1, 7, 4, 3.0, "euler"),
        ("a red circle bouncing on a navy background", None, 1, 30, 3, 1.0, "euler"),
    )
)


def wan(folder_name: str) -> tuple[Request, ...]:
    return tuple(
        Request(
            model=folder_name,
            task="text_to_video",
            prompt=prompt,
            seed=seed,
            height=height,
            width=width,
            num_frames=num_frames,
            num_inference_steps=steps,
            guidance_scale=scale,
            outputs=("video", "latents"),
        )
        for prompt, seed, height, width, num_frames, steps, scale in (
            ("a cat on a mat", 1, 16, 32, 5, 3, 1.0),
            ("two dogs", 1, 32, 16, 1, 4, 5.0),
        )
    )


def equal(one: Output, other: Output) -> bool:
    return torch.equal(one.latents, other.latents) and bool(
        (one.video.frames == other.video.frames).all()
    )


@pytest.fixture(scope="module")
def alone(
    tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path]
) -> tuple[tuple[Request, ...], list[Output], tuple[Path, Path]]:
    folder = tiny_wan_folder("UniPCMultistepScheduler")
    source = open_model(folder)
    requests = BUILTIN + wan(source.card.model_id)
    outputs: list[Output] = []
    for request in requests:
        with Engine(max_batch=1) as engine:
            engine.add(open_builtin(tiny_builtin_folder))
            engine.add(source)
            outputs.append(engine.submit(request).result())
    return requests, outputs, (tiny_builtin_folder, folder)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_eight_requests_in_random_order_equal_each_alone(
    alone: tuple[tuple[Request, ...], list[Output], tuple[Path, Path]],
    seed: int,
    data: st.DataObject,
) -> None:
    requests, expected, (builtin, wan_folder) = alone
    order = data.draw(st.permutations(range(len(requests))))
    turns = RandomTurns(seed)
    with Engine(turns) as engine:
        residents = [engine.add(open_builtin(builtin)), engine.add(open_model(wan_folder))]
        handles = [engine.submit(requests[i]) for i in order]
        outputs = [handle.result() for handle in handles]
        assert all(equal(out, expected[i]) for out, i in zip(outputs, order, strict=True))
        assert all(resident.pages.num_pages == 0 for resident in residents)
    assert turns.num_switches > 20, "the requests were not interleaved, so this run proved nothing"


def test_the_gate_bites(
    alone: tuple[tuple[Request, ...], list[Output], tuple[Path, Path]],
) -> None:
    _, expected, _ = alone
    assert not equal(expected[0], expected[5]), "guidance changed nothing"
    assert len(expected) == 8
