"""Whoever waits may be interrupted at any instant: nobody else is then kept waiting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ostinato.api import Engine
from ostinato.models.builtin.card import open_builtin
from ostinato.request import CancelScope
from ostinato.runtime import Handle, ResidentModel
from ostinato.runtime.resolve import resolve
from ostinato.runtime.waiters import Waiters
from ostinato.tasks import RequestId
from support.faults import WAIT_S
from support.requests import request

MOST_INSTANTS = 500


def interrupted_everywhere(act: Callable[[], object]) -> Iterator[None]:
    """Interrupt `act` at each instant at which Ctrl-C can; yields after each time.

    Python looks at signals where a function begins and where a call of one in C returns.
    """
    for instant in range(MOST_INSTANTS):
        if not _interrupted(act, instant):
            assert instant > 1, "it was not interrupted, so this run proved nothing"
            return
        yield
    raise AssertionError(f"it goes on after {MOST_INSTANTS} instants")


def _interrupted(act: Callable[[], object], instant: int) -> bool:
    left = instant

    def look(frame: object, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        act()
    except KeyboardInterrupt:
        return left < 0
    finally:
        sys.setprofile(None)
    return False


def elsewhere(act: Callable[[], object]) -> None:
    """Do something on another thread, which must not be kept waiting."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "a lock was left taken"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def resident(engine: Engine, tiny_builtin_folder: Path) -> ResidentModel:
    return engine.add(open_builtin(tiny_builtin_folder))


@pytest.mark.parametrize("way", ["wait", "events", "result", "subscribe"])
def test_a_handle_lives_on_whenever_its_caller_is_interrupted(
    resident: ResidentModel, way: str
) -> None:
    spec = resolve(resident.card, request(), RequestId("r1"))
    handles = [Handle(spec, CancelScope(), lambda: None)]

    def act() -> None:
        handle = handles[-1]
        if way == "subscribe":
            handle.subscribe(lambda event: None)()
            return
        try:
            list(handle.events(0.001)) if way == "events" else getattr(handle, way)(0.001)
        except TimeoutError:
            return

    for _ in interrupted_everywhere(act):
        elsewhere(handles[-1].tell_started)
        elsewhere(handles[-1].tell_cancelled)
        handles[-1].wait(WAIT_S)
        handles.append(Handle(spec, CancelScope(), lambda: None))


def test_an_engine_lives_on_whenever_a_caller_that_cancels_is_interrupted(
    engine: Engine, resident: ResidentModel
) -> None:
    done = engine.submit(request())
    done.wait(WAIT_S)
    for _ in interrupted_everywhere(engine._worker.notify):
        elsewhere(engine._worker.notify)
    assert engine.submit(request()).result(WAIT_S)


def test_who_waits_is_woken_by_what_happens_and_not_by_every_change() -> None:
    lock, came, answers = threading.RLock(), list[int](), list[bool]()
    waiters = Waiters(lock)
    threads = [
        threading.Thread(
            target=lambda n=n: answers.append(waiters.wait_until(lambda: len(came) >= n, WAIT_S))
        )
        for n in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for left in (2, 1):
        assert len([thread for thread in threads if thread.is_alive()]) == left
        with lock:
            came.append(left)
            waiters.wake()
        threads[2 - left].join(WAIT_S)
    assert answers == [True, True]


def test_a_wait_that_is_over_keeps_nothing() -> None:
    waiters = Waiters(threading.RLock())
    assert not waiters.wait_until(lambda: False, 0.0)
    assert waiters.wait_until(lambda: True)
    assert waiters._bells == []
