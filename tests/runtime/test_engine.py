"""The engine: one path, events, cancellation at step boundaries, nothing left behind."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ostinato.api import Engine, Model
from ostinato.errors import (
    BadInput,
    DeadlineExceeded,
    EngineClosed,
    InternalError,
    NonFinite,
    OutputMissing,
    RequestCancelled,
    UnknownField,
    UnknownModel,
)
from ostinato.models.builtin.card import open_builtin
from ostinato.request import (
    Advice,
    Cancelled,
    ChunkReady,
    Failed,
    Finished,
    Progress,
    Request,
    Started,
)
from ostinato.runtime import Handle, ResidentModel

PROMPT = "a red circle bouncing on a navy background"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(max_batch=1) as engine:
        yield engine


@pytest.fixture
def resident(engine: Engine, tiny_builtin_folder: Path) -> ResidentModel:
    return engine.add(open_builtin(tiny_builtin_folder))


def request(**fields: object) -> Request:
    base = {"model": "builtin", "task": "text_to_video", "prompt": PROMPT, "seed": 1}
    small = {"num_frames": 30, "num_inference_steps": 2}
    return Request.build(**{**base, **small, **fields})


def test_a_request_delivers_what_it_asked_for(engine: Engine, resident: ResidentModel) -> None:
    output = engine.submit(request(outputs=("video", "latents"))).result()
    assert output.video.frames.shape == (30, 64, 64, 3)
    assert output.video.frames.dtype == np.uint8
    assert output.video.fps == 16
    assert output.latents.shape == (1, 16, 8, 8, 8)
    assert output.latents.dtype == torch.float32


def test_an_output_that_was_not_asked_for_is_not_made(
    engine: Engine, resident: ResidentModel
) -> None:
    output = engine.submit(request(outputs=("latents",))).result()
    assert "codec" not in resident.loaded
    assert "codec.decode" not in output.provenance.calls
    with pytest.raises(OutputMissing, match="video"):
        _ = output.video


def test_events_are_dense_and_the_last_is_final(engine: Engine, resident: ResidentModel) -> None:
    handle = engine.submit(request(prompt="a red zeppelin bouncing"))
    events = list(handle.events())
    assert [event.sequence for event in events] == list(range(len(events)))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Finished | Failed | Cancelled) for event in events[:-1])
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.step for event in progress] == list(range(1, len(progress) + 1))
    assert {event.total for event in progress} == {len(progress)}
    assert all(a.device_s < b.device_s for a, b in itertools.pairwise(progress))
    advice = [event.message for event in events if isinstance(event, Advice)]
    assert len(advice) == 1
    assert "'zeppelin'" in advice[0]
    assert handle.result().advice == tuple(advice)
    assert list(handle.events()) == events


def test_chunks_arrive_before_the_end_and_join_to_the_clip(
    engine: Engine, resident: ResidentModel
) -> None:
    handle = engine.submit(request())
    events = list(handle.events())
    chunks = [event for event in events if isinstance(event, ChunkReady)]
    assert [chunk.index for chunk in chunks] == [0, 1, 2]
    assert [len(chunk.value) for chunk in chunks] == [12, 12, 6]  # type: ignore[arg-type]
    joined = np.concatenate([chunk.value for chunk in chunks])  # type: ignore[misc]
    np.testing.assert_array_equal(joined, handle.result().video.frames)
    first_chunk = events.index(chunks[0])
    steps_after = [
        e for e in events[first_chunk:] if isinstance(e, Progress) and e.node == "rollout"
    ]
    assert len(steps_after) >= 6, "the first chunk came only after the whole roll-out"


def test_provenance_says_how_to_make_it_again(engine: Engine, resident: ResidentModel) -> None:
    output = engine.submit(request()).result()
    spec, source = output.provenance.spec, output.provenance
    again = engine.submit(
        request(num_frames=spec.num_frames, guidance_scale=spec.guidance_scale, seed=spec.seed)
    ).result()
    np.testing.assert_array_equal(again.video.frames, output.video.frames)
    assert source.card_digest == resident.card.digest()
    assert source.calls["transformer.store"] == 2, "the last block is never stored"
    assert source.device_s > 0
    assert source.load_s > 0
    assert again.provenance.load_s == 0


def test_seeds_and_prompts_matter(engine: Engine, resident: ResidentModel) -> None:
    one, same, seed, prompt = engine.run(
        [request(), request(), request(seed=2), request(prompt="a blue ring standing still")]
    )
    np.testing.assert_array_equal(one.video.frames, same.video.frames)
    assert not np.array_equal(one.video.frames, seed.video.frames)
    assert not np.array_equal(one.video.frames, prompt.video.frames)


def cancel_at_step(handle: Handle, step: int) -> None:
    for event in handle.events(timeout_s=60):
        if isinstance(event, Progress) and event.step == step:
            handle.cancel()


@pytest.mark.parametrize("step", [1, 3, 5, 9])
def test_cancel_takes_effect_at_a_step_boundary_and_frees_everything(
    engine: Engine, resident: ResidentModel, step: int
) -> None:
    handle = engine.submit(request(num_frames=9600))
    cancel_at_step(handle, step)
    events = list(handle.events())
    assert isinstance(events[-1], Cancelled)
    assert resident.pages.num_pages == 0
    with pytest.raises(RequestCancelled):
        handle.result()
    handle.cancel()
    assert engine.submit(request()).result().video.frames.shape[0] == 30


def test_cancel_before_the_first_step(engine: Engine, resident: ResidentModel) -> None:
    long = engine.submit(request(num_frames=9600))
    queued = engine.submit(request(priority=-1))
    queued.cancel()
    with pytest.raises(RequestCancelled):
        queued.result(timeout_s=60)
    assert not any(isinstance(event, Started) for event in queued.events())
    long.cancel()
    with pytest.raises(RequestCancelled):
        long.result(timeout_s=60)


def test_a_fault_in_one_request_fails_that_one_alone(
    engine: Engine, resident: ResidentModel
) -> None:
    component = resident.component("transformer")
    op = component.op("predict")

    def faulty(latents: torch.Tensor, timestep: torch.Tensor, **inputs: object) -> object:
        outputs = op(latents=latents, timestep=timestep, **inputs)
        if int(latents.shape[0]) and float(inputs["text_kv"][0].key.sum()) == poison:  # type: ignore[index]
            raise RuntimeError("a cable was pulled")
        return outputs

    alone = engine.submit(request(seed=5)).result()
    encode = resident.component("text_encoder").op("encode")
    embeds = [encode(text=text)["prompt_embeds"] for text in ("a blue square falling", "")]
    text_kv = component.op("encode_text")(prompt_embeds=tuple(embeds))["text_kv"]
    poison = float(text_kv[0].key.sum())
    component.predict = faulty  # type: ignore[attr-defined]
    bad = engine.submit(request(prompt="a blue square falling"))
    good = engine.submit(request(seed=5))
    with pytest.raises(InternalError, match="a cable was pulled") as caught:
        bad.result(timeout_s=60)
    assert isinstance(caught.value.__cause__, RuntimeError)
    np.testing.assert_array_equal(good.result().video.frames, alone.video.frames)
    assert resident.pages.num_pages == 0


def test_nan_names_the_step_and_tensor_and_fails_that_request_alone(
    engine: Engine, resident: ResidentModel
) -> None:
    component = resident.component("transformer")
    op, seen = component.op("predict"), iter(range(100))

    def third_is_nan(**inputs: object) -> object:
        outputs = op(**inputs)
        if next(seen) == 2:
            outputs = {"prediction": outputs["prediction"] * float("nan")}
        return outputs

    component.predict = third_is_nan  # type: ignore[attr-defined]
    with pytest.raises(NonFinite, match=r"node 'rollout'.*'prediction'"):
        engine.submit(request()).result(timeout_s=60)
    assert engine.submit(request()).result(timeout_s=60).video.frames.shape[0] == 30


def test_a_deadline_stops_a_request_at_a_step_boundary(
    engine: Engine, resident: ResidentModel
) -> None:
    handle = engine.submit(request(num_frames=57600, deadline_s=0.5))
    with pytest.raises(DeadlineExceeded, match="of "):
        handle.result(timeout_s=60)
    assert resident.pages.num_pages == 0


def test_priority_runs_first(engine: Engine, resident: ResidentModel) -> None:
    low = engine.submit(request(num_frames=9600))
    high = engine.submit(request(priority=1))
    high.result(timeout_s=60)
    assert not low.done
    low.cancel()


def test_bad_input_loads_nothing_and_holds_nothing(engine: Engine, resident: ResidentModel) -> None:
    for fields in (
        {"height": 17},
        {"num_frames": 0},
        {"prompt": ""},
        {"guidance_scale": float("nan")},
    ):
        with pytest.raises(BadInput):
            engine.submit(request(**fields))
    with pytest.raises(UnknownModel, match="builtin"):
        engine.submit(request(model="missing"))
    assert resident.loaded == ()
    assert resident.pages.num_pages == 0


def test_run_cancels_what_it_submitted_when_one_is_refused(
    engine: Engine, resident: ResidentModel
) -> None:
    with pytest.raises(BadInput):
        engine.run([request(num_frames=57600), request(num_frames=-1)])
    assert engine.submit(request()).result(timeout_s=60)


def test_a_closed_engine_refuses_and_cancels_what_ran(tiny_builtin_folder: Path) -> None:
    engine = Engine()
    resident = engine.add(open_builtin(tiny_builtin_folder))
    running = engine.submit(request(num_frames=57600))
    next(running.events())
    engine.close()
    engine.close()
    with pytest.raises(RequestCancelled):
        running.result(timeout_s=5)
    assert resident.pages.num_pages == 0
    with pytest.raises((EngineClosed, UnknownModel)):
        engine.submit(request())
    assert "ostinato-device" not in {t.name for t in threading.enumerate() if t.is_alive()}


def test_kernels_run_on_the_device_worker_only(engine: Engine, resident: ResidentModel) -> None:
    names: set[str] = set()
    component = resident.component("codec")
    op = component.op("decode")

    def recorded(**inputs: object) -> object:
        names.add(threading.current_thread().name)
        assert not torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        return op(**inputs)

    component.decode = recorded  # type: ignore[attr-defined]
    engine.submit(request()).result()
    assert names == {"ostinato-device"}


@pytest.mark.parametrize(("forced", "expected"), [(None, 1), ("2", 2)])
def test_kernels_use_the_threads_of_the_card_or_of_the_environment(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch, forced: str | None, expected: int
) -> None:
    if forced is not None:
        monkeypatch.setenv("OSTINATO_NUM_THREADS", forced)
    before = torch.get_num_threads()
    seen: set[int] = set()
    with Engine(max_batch=1) as engine:
        component = engine.add(open_builtin(tiny_builtin_folder)).component("codec")
        op = component.op("decode")

        def recorded(**inputs: object) -> object:
            seen.add(torch.get_num_threads())
            return op(**inputs)

        component.decode = recorded  # type: ignore[attr-defined]
        engine.submit(request()).result()
    torch.set_num_threads(before)
    assert seen == {expected}


def test_another_model_under_the_same_id_is_refused(
    engine: Engine, resident: ResidentModel, tiny_builtin_folder: Path
) -> None:
    source = open_builtin(tiny_builtin_folder)
    assert engine.add(source) is resident
    other = type(source)(card=source.card.derive(provenance="elsewhere"), folder=source.folder)
    with pytest.raises(BadInput, match="already serves"):
        engine.add(other)


def test_the_model_surface(tiny_builtin_folder: Path) -> None:
    with Model(open_builtin(tiny_builtin_folder)) as model:
        output = model.generate(PROMPT, num_frames=12, num_inference_steps=1, seed=4)
        assert output.video.frames.shape == (12, 64, 64, 3)
        with pytest.raises(UnknownField, match="did you mean 'num_frames'"):
            model.generate(PROMPT, nun_frames=12)
