"""Ctrl-C while a caller waits, and what stays in memory once nobody asks any more."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from ostinato.api import Engine
from ostinato.errors import InternalError
from ostinato.models.builtin.card import open_builtin
from ostinato.request import Cancelled, ChunkReady, Finished
from ostinato.runtime import Handle, ResidentModel
from ostinato.runtime.core import DeviceWorker
from ostinato.runtime.running import RunningRequest
from support.faults import (
    WAIT_S,
    Act,
    Acts,
    Holdings,
    assert_nothing_held,
    doing,
    ended,
    install_acts,
    raising,
)
from support.requests import request

VICTIM = 77


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> Acts:
    return install_acts(monkeypatch)


@pytest.fixture
def engine(acts: Acts) -> Iterator[Engine]:
    with Engine(max_batch=1) as engine:
        yield engine


@pytest.fixture
def resident(engine: Engine, tiny_builtin_folder: Path) -> ResidentModel:
    return engine.add(open_builtin(tiny_builtin_folder))


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Yield what presses Ctrl-C from any thread: the main thread is woken as by a terminal.

    A shell starts background jobs with SIGINT ignored, so it is set to interrupt here.
    """
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def at_call(acts: Acts, index: int, act: Act) -> None:
    acts.plan(VICTIM, {index: act})


def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """Record the handle of every request that reaches the worker."""
    handles: list[Handle] = []
    put = DeviceWorker.put

    def recorded(self: DeviceWorker, running: RunningRequest) -> None:
        handles.append(running.handle)
        put(self, running)

    monkeypatch.setattr(DeviceWorker, "put", recorded)
    return handles


@pytest.mark.parametrize("index", [0, 4, 9])
def test_an_interrupted_run_cancels_all_it_submitted(
    engine: Engine,
    resident: ResidentModel,
    acts: Acts,
    interrupt: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    index: int,
) -> None:
    handles, start = submitted(monkeypatch), Holdings.now()
    at_call(acts, index, doing(interrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.run([request(num_frames=9600), request(seed=VICTIM), request(num_frames=9600)])
    ends = [ended(handle) for handle in handles]
    assert isinstance(ends[0], Cancelled)
    assert all(isinstance(end, Cancelled | Finished) for end in ends)
    assert_nothing_held(start, [resident], handles)
    assert engine.submit(request()).result(WAIT_S)


def test_an_interrupted_submit_leaves_nothing_running(
    engine: Engine, resident: ResidentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has no handle to cancel with when Ctrl-C comes just after queueing."""
    handles = submitted(monkeypatch)
    put = DeviceWorker.put

    def interrupted(self: DeviceWorker, running: RunningRequest) -> None:
        put(self, running)
        raise KeyboardInterrupt

    monkeypatch.setattr(DeviceWorker, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(request(num_frames=9600))
    assert isinstance(ended(handles[0]), Cancelled)
    assert resident.pages.num_pages == 0


@pytest.mark.parametrize("wait", [Handle.wait, Handle.result, lambda handle: [*handle.events()]])
def test_an_interrupted_wait_can_be_taken_up_again(
    engine: Engine,
    resident: ResidentModel,
    acts: Acts,
    interrupt: Callable[[], None],
    wait: Callable[[Handle], object],
) -> None:
    expected = engine.submit(request(seed=VICTIM)).result(WAIT_S)
    start, waiting = Holdings.now(), threading.Event()

    def when_waited_for() -> None:
        assert waiting.wait(WAIT_S)
        interrupt()

    at_call(acts, 5, doing(when_waited_for))
    handle = engine.submit(request(seed=VICTIM))

    def take_up() -> None:
        waiting.set()
        wait(handle)

    with pytest.raises(KeyboardInterrupt):
        take_up()
    assert (handle.result(WAIT_S).video.frames == expected.video.frames).all()
    assert_nothing_held(start, [resident], [handle])


def failed_handle(engine: Engine, acts: Acts, error: BaseException) -> Handle:
    at_call(acts, 4, raising(error))
    handle = engine.submit(request(seed=VICTIM))
    ended(handle)
    return handle


def test_asking_again_for_a_failure_piles_up_nothing(
    engine: Engine, resident: ResidentModel, acts: Acts
) -> None:
    handle = failed_handle(engine, acts, RuntimeError("a cable was pulled"))
    errors: list[InternalError] = []
    for _ in range(3):
        with pytest.raises(InternalError, match="a cable was pulled") as caught:
            handle.result()
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3
    final = [*handle.events()][-1].error  # type: ignore[union-attr]
    assert final.__traceback__ is None, "frames of every caller would stay with the handle"
    for error in errors:
        assert type(error) is type(final)
        assert (error.args, error.__notes__) == (final.args, final.__notes__)
        assert error.__cause__ is final.__cause__


def test_a_kept_handle_keeps_nothing_of_who_asked_it(
    engine: Engine, resident: ResidentModel, acts: Acts
) -> None:
    class Large:
        """Stands for what a caller has in its locals."""

    def ask() -> weakref.ref[Large]:
        large = Large()
        with pytest.raises(InternalError):
            handle.result()
        return weakref.ref(large)

    handle = failed_handle(engine, acts, RuntimeError("a cable was pulled"))
    asked = ask()
    gc.collect()
    assert asked() is None


@pytest.mark.parametrize("end", ["finished", "cancelled", "failed"])
def test_an_idle_engine_keeps_no_request_that_has_ended(
    engine: Engine, resident: ResidentModel, acts: Acts, end: str
) -> None:
    """Frames and events are the caller's, who may drop them; the engine stays for the next."""

    def play() -> tuple[weakref.ref[Handle], weakref.ref[object]]:
        handle = engine.submit(request(seed=VICTIM))
        chunks = [e.value for e in handle.events(WAIT_S) if isinstance(e, ChunkReady)]
        return weakref.ref(handle), weakref.ref(chunks[0])

    cases: Mapping[str, Mapping[int, Act]] = {
        "finished": {},
        "cancelled": {9: doing(lambda: [h.cancel() for h in live_handles()])},
        "failed": {9: raising(RuntimeError("late"))},
    }
    acts.plan(VICTIM, cases[end])
    references = play()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def live_handles() -> list[Handle]:
    return [found for found in gc.get_objects() if isinstance(found, Handle)]


def test_descriptors_can_be_counted_here() -> None:
    """Where they cannot, the other tests hold less than they say."""
    if os.name == "posix" and Path("/proc/self").is_dir():
        before = Holdings.now()
        with open(os.devnull, "rb"):
            assert Holdings.now() != before
        assert Holdings.now() == before
