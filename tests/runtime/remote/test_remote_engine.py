"""RemoteEngine behind a server on a thread: the protocol of Engine, and what follows a loss."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from ostinato.card import ModelSource
from ostinato.errors import (
    BadInput,
    EngineClosed,
    EngineLost,
    InvalidMessage,
    InvalidRequest,
    OstinatoError,
    RequestCancelled,
    UnknownModel,
    UnsupportedTask,
)
from ostinato.models.builtin.card import open_builtin
from ostinato.models.registry import open_model
from ostinato.request import (
    Advice,
    Cancelled,
    CancelScope,
    ChunkReady,
    Event,
    Failed,
    Finished,
    LatentPart,
    Progress,
    Request,
    Started,
)
from ostinato.runtime import Engine, Handle, Output
from ostinato.runtime.follow import follow
from ostinato.runtime.remote import RemoteEngine, Supervision
from ostinato.runtime.remote import messages as m
from ostinato.runtime.remote.process import EngineHost
from support.remote import ThreadHost
from support.requests import request

WAIT_S = 120.0
LONG = {"num_frames": 96, "num_inference_steps": 50}


def remote(host: EngineHost, supervision: Supervision | None = None) -> RemoteEngine:
    engine = RemoteEngine.__new__(RemoteEngine)
    engine._begin(host, supervision)
    return engine


@pytest.fixture
def builtin(tiny_builtin_folder: Path) -> ModelSource:
    return open_builtin(tiny_builtin_folder)


@pytest.fixture
def host() -> ThreadHost:
    return ThreadHost(Engine)


@pytest.fixture
def engine(host: ThreadHost, builtin: ModelSource) -> Iterator[RemoteEngine]:
    with remote(host) as engine:
        engine.add(builtin)
        yield engine


def lose(engine: RemoteEngine, host: ThreadHost) -> None:
    """Lose the engine, and wait until the client has noticed."""
    before = engine._supervisor._link
    host.lose()
    until = time.monotonic() + WAIT_S
    while engine._supervisor._link is before and time.monotonic() < until:
        time.sleep(0.01)


def same(one: Output, other: Output) -> bool:
    return torch.equal(one.latents, other.latents) and np.array_equal(
        one.video.frames, other.video.frames
    )


def plain(event: Event) -> object:
    """Return what of an event does not depend on time."""
    match event:
        case Progress():
            return "progress", event.sequence, event.node, event.step, event.total
        case ChunkReady():
            assert isinstance(event.value, np.ndarray)
            assert not event.value.flags.writeable
            return "chunk", event.sequence, event.output, event.index, event.value.tobytes()
        case Advice():
            return "advice", event.sequence, event.message
        case _:
            return type(event).__name__, event.sequence


def test_bytes_events_and_provenance_are_those_of_an_engine_here(
    engine: RemoteEngine, builtin: ModelSource, tiny_wan_folder: Callable[[str], Path]
) -> None:
    wan = open_model(tiny_wan_folder("UniPCMultistepScheduler"))
    engine.add(wan)
    both = ("video", "latents")
    small = {"model": wan.card.model_id, "height": 16, "width": 32, "num_frames": 5}
    latents = LatentPart(latents=np.random.default_rng(3).normal(size=(1, 16, 2, 2, 4)))
    requests = (
        request(prompt="a red zeppelin bouncing", num_frames=30, outputs=both),
        request(outputs=both, prompt="two dogs", inputs=(latents,), **small),
        request(outputs=both, prompt="two dogs", **small),
    )
    with Engine() as here:
        here.add(builtin)
        here.add(wan)
        for each in requests:
            ours, theirs = here.submit(each), engine.submit(each)
            assert list(map(plain, ours.events())) == list(map(plain, theirs.events()))
            assert same(ours.result(), theirs.result())
            mine, other = ours.result().provenance, theirs.result().provenance
            assert other.calls == mine.calls
            assert other.versions == mine.versions
            assert other.card_digest == mine.card_digest
            assert other.spec.prompt == mine.spec.prompt
            assert theirs.result().advice == ours.result().advice


def test_a_wrong_request_is_refused_as_by_an_engine_here(
    engine: RemoteEngine, builtin: ModelSource
) -> None:
    wrong = (
        request(model="no"),
        request(task="text_to_audio"),
        request(num_frames=10**6, seed="x"),
        request(inputs=(LatentPart(latents=torch.zeros(1, 2, 3, 4, 5)),)),
        request(inputs=(LatentPart(latents=torch.zeros(2).to_sparse()),)),
    )
    with Engine() as here:
        here.add(builtin)
        for each in wrong:
            with pytest.raises(OstinatoError) as ours:
                here.submit(each)
            with pytest.raises(OstinatoError) as theirs:
                engine.submit(each)
            assert type(theirs.value) is type(ours.value)
            assert str(theirs.value) == str(ours.value)
            assert isinstance(ours.value, UnknownModel | UnsupportedTask | InvalidRequest)


def test_another_card_under_the_same_id_is_refused(
    engine: RemoteEngine, builtin: ModelSource
) -> None:
    assert engine.add(builtin) is builtin
    other = ModelSource(card=builtin.card.derive(provenance="other"), folder=builtin.folder)
    with pytest.raises(BadInput, match="already serves another model"):
        engine.add(other)


def test_a_failure_is_the_same_typed_error(engine: RemoteEngine) -> None:
    handle = engine.submit(request(deadline_s=1e-6))
    *_, last = handle.events(WAIT_S)
    assert isinstance(last, Failed)
    assert last.error.code == "deadline_exceeded"
    with pytest.raises(type(last.error), match="passed its deadline"):
        handle.result()


def test_a_cancelled_request_ends_at_a_step(engine: RemoteEngine) -> None:
    handle = engine.submit(request(**LONG))
    for event in handle.events(WAIT_S):
        if isinstance(event, Progress):
            handle.cancel()
    assert isinstance(event, Cancelled)
    with pytest.raises(RequestCancelled):
        handle.result()
    assert len(engine.run([request()])) == 1


def test_a_client_that_goes_takes_only_its_own_requests_along(
    engine: RemoteEngine, host: ThreadHost, builtin: ModelSource
) -> None:
    other = RemoteEngine.attach(Path(host.address))
    other.add(builtin)
    theirs, ours = other.submit(request(**LONG)), engine.submit(request(outputs=("latents",)))
    other.close()
    assert isinstance(list(theirs.events())[-1], Cancelled)
    assert ours.result(WAIT_S).latents is not None
    until = time.monotonic() + WAIT_S
    while len(running(host)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not running(host)
    with pytest.raises(EngineClosed):
        other.submit(request())


def running(host: ThreadHost) -> list[object]:
    sessions = host._server._sessions if host._server else ()
    return [handle for session in sessions for handle in session._handles.values()]


def test_a_lost_engine_fails_what_runs_and_serves_what_comes_next(
    engine: RemoteEngine, host: ThreadHost
) -> None:
    handles = [engine.submit(request(**LONG)) for _ in range(3)]
    next(handles[0].events(WAIT_S))
    host.lose("it was struck by lightning")
    for handle in handles:
        with pytest.raises(EngineLost, match="struck by lightning"):
            handle.result(WAIT_S)
    assert engine.run([request()])[0].video.frames.shape[0] == 24
    assert host.num_starts == 2


def test_a_submission_that_is_lost_raises(engine: RemoteEngine, host: ThreadHost) -> None:
    reached, go = threading.Event(), threading.Event()

    class Slow(Engine):
        def submit(self, request: Request) -> Handle:
            reached.set()
            go.wait(WAIT_S)
            return super().submit(request)

    host._make = Slow
    lose(engine, host)
    failures: list[OstinatoError] = []

    def submit() -> None:
        try:
            engine.submit(request())
        except OstinatoError as error:
            failures.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    assert reached.wait(WAIT_S)
    host._make = Engine
    threading.Timer(0.5, go.set).start()
    host.lose("it was lost again")
    thread.join(WAIT_S)
    assert [str(f) for f in failures] == ["it was lost again"]
    assert isinstance(failures[0], EngineLost)
    assert engine.run([request()])


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (EngineLost("it would not start"), "it would not start"),
        (RuntimeError("can't start new thread"), "RuntimeError: can't start new thread"),
    ],
)
def test_restarts_are_tried_with_patience_and_given_up(
    builtin: ModelSource, failure: Exception, said: str
) -> None:
    host = ThreadHost(Engine)
    host.failure = failure
    with remote(host, Supervision(max_losses=2)) as engine:
        engine.add(builtin)
        host.fails = 1
        lose(engine, host)
        assert engine.run([request()])  # the second attempt came up
        assert host.num_starts == 3
        host.fails = 9
        lose(engine, host)
        with pytest.raises(EngineClosed, match=f"{said}; it was lost 3 times in a row"):
            engine.submit(request())
        assert host.num_starts == 5


def test_an_engine_that_breaks_the_protocol_is_lost(engine: RemoteEngine, host: ThreadHost) -> None:
    handle = engine.submit(request(**LONG))
    (session,) = host._server._sessions  # type: ignore[union-attr]
    session._channel.send(m.ProgressTold(ticket=99, node="x", step=1, total=1, device_s=0.0))
    with pytest.raises(EngineLost, match="given up: ticket 99 is not that of a running request"):
        handle.result(WAIT_S)
    assert engine.run([request()])


@pytest.mark.parametrize("what", ["version", "unknown", "twice", "not an engine's"])
def test_a_client_that_breaks_the_protocol_is_dropped(
    what: str, engine: RemoteEngine, host: ThreadHost, builtin: ModelSource
) -> None:
    other = RemoteEngine.attach(Path(host.address), supervision=Supervision(max_losses=0))
    link = other._supervisor.link()
    other.add(builtin)
    bad: dict[str, list[m.AnyMessage]] = {
        "version": [m.Hello(version="0.0", silence_s=1.0)],
        "unknown": [m.Submit(ticket=5, fields=msgspec.Raw(b"\x80"))],
        "twice": [m.Hello(version="x", silence_s=float("nan"))],
        "not an engine's": [m.Accepted(ticket=1, request_id="r")],
    }
    for message in bad[what]:
        link._channel.send(message)
    assert link.join(WAIT_S)
    with pytest.raises(EngineClosed):
        other.submit(request())
    other.close()
    assert engine.run([request()])


def test_close_while_requests_run_cancels_them(host: ThreadHost, builtin: ModelSource) -> None:
    engine = remote(host)
    engine.add(builtin)
    handles = [engine.submit(request(**LONG)) for _ in range(3)]
    engine.close()
    engine.close()
    for handle in handles:
        assert isinstance(list(handle.events())[-1], Cancelled)
    for use in (lambda: engine.submit(request()), lambda: engine.add(builtin)):
        with pytest.raises(EngineClosed):
            use()


def test_an_engine_that_nobody_holds_is_closed_after_its_last_request(
    host: ThreadHost, builtin: ModelSource
) -> None:
    engine = remote(host)
    engine.add(builtin)
    handle = engine.submit(request())
    finalizer = engine._finalizer
    del engine
    assert handle.result(WAIT_S).video.frames.shape[0] == 24
    until = time.monotonic() + WAIT_S
    while finalizer.alive or host._server is not None:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_asyncio_program_follows_without_waiting(engine: RemoteEngine) -> None:
    async def main() -> list[Event]:
        handle = await asyncio.to_thread(engine.submit, request())
        return [event async for event in follow(handle)]

    events = asyncio.run(main())
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert [event.sequence for event in events] == list(range(len(events)))


def test_silence_and_patience_have_bounds() -> None:
    for wrong in ({"silence_s": 0.1}, {"start_s": float("nan")}, {"max_losses": -1}):
        with pytest.raises(BadInput):
            Supervision(**wrong)  # type: ignore[arg-type]


def test_an_interrupted_wait_for_the_answer_cancels_the_request(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[Handle] = []

    def interrupted(self: Future[Handle]) -> Handle:
        monkeypatch.undo()
        accepted.append(self.result())
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(request(**LONG))
    assert isinstance(list(accepted[0].events(WAIT_S))[-1], Cancelled)


class Odd(Engine):
    """Leaves in a chunk what no other process can hold, as a faulty family might."""

    def submit(self, request: Request) -> Handle:
        handle = super().submit(request)
        if request.seed != 13:
            return handle
        handle.cancel()
        handle.wait(WAIT_S)
        odd = Handle(handle.spec, CancelScope(), lambda: None)
        odd.tell_started()
        odd.tell_chunk("video", 0, np.array(["no frames"]))
        odd.tell_progress("decode", 1, 1, 0.0)
        odd.tell_cancelled()
        return odd


def test_a_value_that_cannot_travel_fails_its_request_alone(builtin: ModelSource) -> None:
    with remote(ThreadHost(Odd)) as engine:
        engine.add(builtin)
        other, handle = engine.submit(request()), engine.submit(request(seed=13))
        with pytest.raises(InvalidMessage, match="cannot be sent to another process"):
            handle.result(WAIT_S)
        assert other.result(WAIT_S).video.frames.shape[0] == 24
        assert engine.run([request()])
