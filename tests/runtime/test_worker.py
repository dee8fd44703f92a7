"""What must hold when things go wrong around a request: nobody waits for ever."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ostinato.api import Engine, Model
from ostinato.backend.loading import process_settings
from ostinato.card import ModelSource
from ostinato.errors import (
    DeadlineExceeded,
    EngineClosed,
    InternalError,
    NonFinite,
    RequestCancelled,
    UnknownField,
)
from ostinato.models.builtin.card import open_builtin
from ostinato.request import ChunkReady, Progress, Request
from ostinato.runtime import Handle
from ostinato.runtime.scheduler import Ready
from ostinato.tasks import RequestId
from support.requests import PROMPT, replace_op, request
from support.turns import ByChoice


@pytest.fixture
def source(tiny_builtin_folder: Path) -> ModelSource:
    return open_builtin(tiny_builtin_folder)


@pytest.fixture
def engine(source: ModelSource) -> Iterator[Engine]:
    with Engine(max_batch=1) as engine:
        engine.add(source)
        yield engine


class Breaks(ByChoice):
    """A policy with a fault, after some turns."""

    def __init__(self, answer: BaseException) -> None:
        self.answer, self.turns = answer, 0

    def choose(self, ready: tuple[Ready, ...]) -> RequestId:
        self.turns += 1
        if self.turns < 4:
            return ready[0].request_id
        raise self.answer


@pytest.mark.parametrize("answer", [RuntimeError("no idea"), SystemExit(3)])
def test_a_faulty_policy_ends_every_request_and_the_engine(
    source: ModelSource, answer: BaseException
) -> None:
    with Engine(Breaks(answer)) as engine:
        engine.add(source)
        handles = [engine.submit(request(seed=seed)) for seed in range(3)]
        for handle in handles:
            with pytest.raises(InternalError, match="worker stopped"):
                handle.result(timeout_s=30)
        with pytest.raises(EngineClosed):
            engine.submit(request())


def test_system_exit_in_an_op_fails_that_request_alone(engine: Engine, source: ModelSource) -> None:
    resident = engine.add(source)
    decode = resident.component("codec").op("decode")

    def leave(**inputs: object) -> object:
        raise SystemExit(9)

    replace_op(resident, "codec", "decode", leave)
    with pytest.raises(InternalError, match="SystemExit"):
        engine.submit(request()).result(timeout_s=30)
    replace_op(resident, "codec", "decode", decode)
    assert engine.submit(request()).result(timeout_s=30)


def test_a_release_that_raises_is_told_and_the_engine_lives(
    engine: Engine, source: ModelSource
) -> None:
    resident = engine.add(source)
    close_ring = resident.pages.close_ring

    def raising(ring: object) -> None:
        close_ring(ring)  # type: ignore[arg-type]
        raise SystemExit("released badly")

    resident.pages.close_ring = raising  # type: ignore[method-assign]
    with pytest.raises(InternalError, match="releas"):
        engine.submit(request()).result(timeout_s=30)
    resident.pages.close_ring = close_ring  # type: ignore[method-assign]
    assert engine.submit(request()).result(timeout_s=30)


@pytest.mark.parametrize("end", ["failed", "late", "cancelled"])
def test_a_release_that_raises_hides_nothing(
    engine: Engine, source: ModelSource, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    resident = engine.add(source)
    close_ring = resident.pages.close_ring

    def raising(ring: object) -> None:
        close_ring(ring)  # type: ignore[arg-type]
        raise OSError("released badly")

    def decode(**inputs: object) -> object:
        if end == "cancelled":
            handle.cancel()
        elif end == "late":
            time.sleep(0.3)
        else:
            raise NonFinite("the codec met NaN")
        return found(**inputs)

    found = resident.component("codec").op("decode")
    replace_op(resident, "codec", "decode", decode)
    monkeypatch.setattr(resident.pages, "close_ring", raising)
    with process_settings():
        handle = engine.submit(request(deadline_s=0.3 if end == "late" else None))
    kind = {"failed": NonFinite, "late": DeadlineExceeded, "cancelled": InternalError}[end]
    with pytest.raises(kind) as caught:
        handle.result(timeout_s=30)
    told = "\n".join((str(caught.value), *caught.value.__notes__))
    assert "releasing what a request held failed" in told
    assert "released badly" in told
    assert (handle.num_held, resident.pages.num_pages) == (0, 0)


def test_a_worker_that_stopped_keeps_no_frames(source: ModelSource) -> None:
    class Large:
        """Stands for what the worker's frames hold."""

    class Leaves(Breaks):
        def choose(self, ready: tuple[Ready, ...]) -> RequestId:
            large = Large()
            references.append(weakref.ref(large))
            return super().choose(ready)

    references: list[weakref.ref[Large]] = []
    fault = RuntimeError("no idea")
    with Engine(Leaves(fault)) as engine:
        engine.add(source)
        handles = [engine.submit(request(seed=seed)) for seed in range(2)]
        finals = [[*handle.events(30)][-1].error for handle in handles]  # type: ignore[union-attr]
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    assert finals[0] is not finals[1], "each may be noted upon"
    for final in finals:
        assert final.__cause__ is fault
        assert final.__traceback__ is fault.__traceback__ is None
        assert "in choose" in final.__notes__[0]


def test_a_chunk_cannot_be_used_to_change_the_clip(engine: Engine) -> None:
    handle = engine.submit(request())
    for event in handle.events():
        if isinstance(event, ChunkReady):
            with pytest.raises(ValueError, match="read-only"):
                event.value[:] = 0  # type: ignore[index]
    assert handle.result().video.frames.any()


@pytest.mark.parametrize(
    ("component", "op", "output"),
    [("transformer", "encode_text", "text_kv"), ("transformer", "store", "layers")],
)
def test_nan_inside_tuples_is_seen_before_it_is_committed(
    engine: Engine, source: ModelSource, component: str, op: str, output: str
) -> None:
    resident = engine.add(source)
    found = resident.component(component).op(op)

    def poisoned(**inputs: object) -> object:
        layers = found(**inputs)[output]
        spoilt = type(layers[0])(*(t * float("nan") for t in layers[0]))  # type: ignore[index]
        return {output: (spoilt, *layers[1:])}  # type: ignore[index]

    replace_op(resident, component, op, poisoned)
    with pytest.raises(NonFinite, match=rf"{output}\[0\]"):
        engine.submit(request()).result(timeout_s=30)


def test_an_overflow_in_the_sampler_is_not_delivered(engine: Engine, source: ModelSource) -> None:
    resident = engine.add(source)
    predict = resident.component("transformer").op("predict")

    def huge(**inputs: object) -> object:
        prediction = torch.full_like(predict(**inputs)["prediction"], 3e38)  # type: ignore[call-overload]
        prediction[1::2] *= -1  # the branches: guidance adds nine times their difference
        return {"prediction": prediction}

    replace_op(resident, "transformer", "predict", huge)
    with pytest.raises(NonFinite, match="latents"):
        engine.submit(request(guidance_scale=9.0, outputs=("latents",))).result(timeout_s=30)


def test_a_starved_request_hears_of_its_deadline_in_time(engine: Engine) -> None:
    busy = engine.submit(request(num_frames=9600, priority=1))
    late = engine.submit(request(deadline_s=0.05))
    with pytest.raises(DeadlineExceeded, match="after 0 of"):
        late.result(timeout_s=10)
    assert not busy.done
    busy.cancel()


def test_an_interrupted_wait_cancels(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    handles: list[Handle] = []

    def interrupted(self: Handle, timeout_s: float | None = None) -> None:
        if not handles:
            handles.append(self)
            raise KeyboardInterrupt
        wait(self, timeout_s)

    wait = Handle.wait
    with Model(source) as model:
        monkeypatch.setattr(Handle, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, num_frames=9600)
        with pytest.raises(RequestCancelled):
            handles[0].result(timeout_s=10)
        handles.clear()
        with pytest.raises(KeyboardInterrupt):
            model.engine.run([request(num_frames=9600)])
        with pytest.raises(RequestCancelled):
            handles[0].result(timeout_s=10)


def test_run_cancels_the_others_when_one_is_refused(engine: Engine) -> None:
    submitted: list[Handle] = []
    submit = engine.submit

    def recorded(asked: Request) -> Handle:
        submitted.append(submit(asked))
        return submitted[-1]

    engine.submit = recorded  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="num_frames"):
        engine.run([request(num_frames=57600), request(num_frames=-1)])
    with pytest.raises(RequestCancelled):
        submitted[0].result(timeout_s=10)


def test_a_closed_engine_says_so(source: ModelSource) -> None:
    engine = Engine()
    engine.add(source)
    engine.close()
    with pytest.raises(EngineClosed):
        engine.submit(request())
    with pytest.raises(EngineClosed):
        engine.add(source)


def test_the_same_card_in_another_folder_is_another_model(
    engine: Engine, source: ModelSource, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="already serves"):
        engine.add(ModelSource(card=source.card, folder=tmp_path))


def test_several_threads_may_follow_one_request(engine: Engine) -> None:
    handle = engine.submit(request(num_frames=48))
    seen: list[list[int]] = []

    def follow() -> None:
        seen.append([event.sequence for event in handle.events(timeout_s=30)])

    threads = [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(seen) == 4
    assert all(sequence == seen[0] for sequence in seen)


def test_advice_is_given_once(engine: Engine) -> None:
    output = engine.submit(request(prompt="a red zebra", negative_prompt="a red zebra")).result(
        timeout_s=30
    )
    assert len(output.advice) == 1


def test_a_name_that_is_not_the_callers_is_refused(source: ModelSource) -> None:
    with Model(source) as model, pytest.raises(UnknownField, match="leave it out"):
        model.generate(PROMPT, model="wan")


def test_progress_never_goes_back(engine: Engine) -> None:
    handle = engine.submit(request(num_frames=48))
    spent = [event.device_s for event in handle.events() if isinstance(event, Progress)]
    assert np.all(np.diff(spent) > 0)
