"""The device worker: the thread that runs every kernel of an engine, one unit after the other.

Each tick it shows the scheduler what there is, and does what the scheduler says. It knows nothing
of models or callers, only of running requests. Whatever happens - a policy that raises, a fault
in our own code - every request gets a final event: nobody waits for ever.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import torch

from ostinato.backend.loading import holds_settings
from ostinato.errors import EngineClosed, InternalError, OstinatoError, RankLost
from ostinato.runtime.desk import Desk
from ostinato.runtime.failure import twin, typed, wrapped
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.waiters import Waiters

THREAD_NAME = "ostinato-device"


class DeviceWorker:
    """Owns the thread and the queue in front of it; the desk owns the requests behind it."""

    def __init__(self, desk: Desk) -> None:
        """Start the thread."""
        self._desk = desk
        self._lock = threading.RLock()
        self._work_came = Waiters(self._lock)
        self._inbox: deque[RunningRequest] = deque()
        self._closing = False
        self._in_turn = False  # whether a turn, which needs the process's settings, may run
        self._thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def closing(self) -> bool:
        """Whether no request is taken any more."""
        return self._closing

    def put(self, running: RunningRequest) -> None:
        """Queue a request; raises EngineClosed."""
        with self._lock:
            if self._closing:
                raise EngineClosed("the engine is closed; make a new one")
            self._inbox.append(running)
            self._work_came.wake()

    def notify(self) -> None:
        """Have the worker look at cancellations; never blocks on a running step."""
        with self._lock:
            self._work_came.wake()

    def stop(self) -> None:
        """Cancel what runs, free everything, end the thread; safe to call again, and from any.

        Raises InternalError on a thread that holds the process's settings, when a turn waits for
        them; the worker then ends as soon as they are free.
        """
        with self._lock:
            self._closing = True
            self._work_came.wake()
            stuck = self._in_turn and holds_settings()
        if threading.current_thread() is self._thread:
            return
        if stuck:
            raise InternalError(
                "the engine is closed by a thread that holds the process's torch settings, which "
                "the turn that it has to wait for needs; close it outside of that block"
            )
        self._thread.join()

    @torch.no_grad()
    def _work(self) -> None:
        try:
            while not self._take():
                self._desk.sweep(time.monotonic())
                if self._desk.busy:
                    self._desk.tick(time.monotonic())
            self._desk.close()
        except BaseException as error:
            with self._lock:
                self._closing, self._in_turn = True, False
                waiting, self._inbox = self._inbox, deque()
            fault = _fault(error)
            self._desk.fail(fault)
            for running in waiting:
                running.end_failed(twin(fault))

    def _take(self) -> bool:
        """Wait for something to do and take what has arrived; returns whether to close."""
        with self._lock:
            self._in_turn = False
        self._work_came.wait_until(self._has_work)
        with self._lock:
            arrived = len(self._inbox)
            self._in_turn = not self._closing
            closing = self._closing
        for _ in range(arrived):
            self._desk.take(self._inbox[0])  # it stays until it is taken, whatever that raises
            self._inbox.popleft()
        return closing

    def _has_work(self) -> bool:
        return bool(self._inbox) or self._desk.busy or self._closing


def _fault(error: BaseException) -> OstinatoError:
    """Return why every request fails: the loss of a rank by name, anything else as ours."""
    stopped = "the engine's worker stopped"
    return typed(error, stopped) if isinstance(error, RankLost) else wrapped(error, stopped)
