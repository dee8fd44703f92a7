"""Close against submit, cancel and turns: whoever calls, everybody hears of the end."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ostinato.api import Engine
from ostinato.backend.loading import process_settings
from ostinato.card import ModelSource
from ostinato.errors import EngineClosed, InternalError, RequestCancelled
from ostinato.models.builtin.card import open_builtin
from ostinato.request import Cancelled, Started
from ostinato.runtime import Handle
from ostinato.runtime.core import DeviceWorker
from ostinato.runtime.scheduler import Ready
from ostinato.tasks import RequestId
from support.faults import WAIT_S, ended
from support.requests import num_workers, request
from support.turns import ByChoice


class Held(ByChoice):
    """A policy that waits for leave before every turn."""

    def __init__(self) -> None:
        self.asked, self.leave = threading.Event(), threading.Event()

    def choose(self, ready: tuple[Ready, ...]) -> RequestId:
        self.asked.set()
        assert self.leave.wait(WAIT_S)
        return ready[0].request_id


@pytest.fixture
def source(tiny_builtin_folder: Path) -> ModelSource:
    return open_builtin(tiny_builtin_folder)


@pytest.fixture
def held() -> Iterator[Held]:
    policy = Held()
    yield policy
    policy.leave.set()


def started(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_every_close_returns_to_an_engine_that_has_stopped(source: ModelSource, held: Held) -> None:
    """Also the second one, while the first still waits for a turn."""
    before = num_workers()
    engine = Engine(held)
    engine.add(source)
    handle, done = engine.submit(request(num_frames=9600)), list[bool]()
    assert held.asked.wait(WAIT_S)
    closing = [started(lambda: (engine.close(), done.append(handle.done))) for _ in range(2)]
    for thread in closing:
        thread.join(0.2)
    assert done == [], "a turn is under way"
    held.leave.set()
    for thread in closing:
        thread.join(WAIT_S)
    assert done == [True, True]
    assert num_workers() == before


def test_a_close_between_the_check_and_the_queue_is_told_as_such(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    engine.add(source)
    require_open, calls = Engine._require_open, list[int]()

    def then_closed(self: Engine) -> None:
        require_open(self)
        calls.append(1)
        if len(calls) == 1:
            self.close()

    monkeypatch.setattr(Engine, "_require_open", then_closed)
    with pytest.raises(EngineClosed):
        engine.submit(request())


def test_requests_submitted_while_the_engine_closes_are_refused_or_end(
    source: ModelSource,
) -> None:
    for _ in range(10):
        engine, handles = Engine(), list[Handle]()
        engine.add(source)

        def submit(engine: Engine = engine, handles: list[Handle] = handles) -> None:
            with contextlib.suppress(EngineClosed):
                while True:
                    handles.append(engine.submit(request(num_frames=9600)))

        threads = [started(submit) for _ in range(3)]
        while not handles:
            pass
        engine.close()
        assert all(handle.done for handle in list(handles))
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a closed engine refuses"
        assert all(isinstance(ended(handle), Cancelled) for handle in handles)


@pytest.mark.parametrize("wait", [Handle.wait, Handle.result, lambda handle: [*handle.events()]])
def test_who_holds_the_settings_is_told_and_not_left_waiting(
    source: ModelSource, wait: Callable[[Handle], object]
) -> None:
    with Engine() as engine:
        engine.add(source)
        with process_settings():
            handle = engine.submit(request())
            with pytest.raises(InternalError, match="outside of that block"):
                wait(handle)
        handle.wait(WAIT_S)
        with process_settings():
            wait(handle)


def test_a_close_that_would_wait_for_itself_is_told(source: ModelSource, held: Held) -> None:
    before = num_workers()
    engine = Engine(held)
    engine.add(source)
    handle = engine.submit(request(num_frames=9600))
    assert held.asked.wait(WAIT_S)
    with process_settings():
        held.leave.set()
        with pytest.raises(InternalError, match="close it outside of that block"):
            engine.close()
    with pytest.raises(RequestCancelled):
        handle.result(WAIT_S)
    engine.close()
    assert num_workers() == before


def test_an_idle_engine_closes_whoever_holds_the_settings(source: ModelSource) -> None:
    before = num_workers()
    engine = Engine()
    engine.add(source)
    engine.submit(request()).wait(WAIT_S)
    while engine._worker._in_turn:
        pass
    with process_settings():
        engine.close()
    assert num_workers() == before


def test_a_request_cancelled_before_its_first_turn_is_not_kept(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker sees it arrive and end in one tick, and then sleeps."""
    put = DeviceWorker.put

    def cancelled(self: DeviceWorker, running: object) -> None:
        running.handle.cancel()  # type: ignore[attr-defined]
        put(self, running)  # type: ignore[arg-type]

    def play() -> weakref.ref[Handle]:
        handle = engine.submit(request())
        events = [*handle.events(WAIT_S)]
        assert isinstance(events[-1], Cancelled)
        assert not any(isinstance(event, Started) for event in events)
        return weakref.ref(handle)

    monkeypatch.setattr(DeviceWorker, "put", cancelled)
    with Engine() as engine:
        engine.add(source)
        reference = play()
        while engine._worker._in_turn:
            pass
        gc.collect()
        assert reference() is None
