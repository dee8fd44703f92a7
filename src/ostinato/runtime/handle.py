"""A caller's side of a request: events, cancellation, the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import get_args

from ostinato.backend.loading import holds_settings
from ostinato.errors import InternalError, OstinatoError, RequestCancelled
from ostinato.request import (
    Advice,
    Cancelled,
    CancelScope,
    ChunkReady,
    Event,
    Failed,
    FinalEvent,
    Finished,
    GenerationSpec,
    Progress,
    Started,
)
from ostinato.runtime.failure import twin
from ostinato.runtime.output import Output
from ostinato.runtime.waiters import Waiters
from ostinato.tasks import RequestId

EventMaker = Callable[[RequestId, int], Event]
Listener = Callable[[Event], None]
_FINAL = get_args(FinalEvent)


class Handle:
    """Follows one request from any thread."""

    def __init__(self, spec: GenerationSpec, scope: CancelScope, wake: Callable[[], None]) -> None:
        """Made by the engine; `wake` tells its worker to look at the scope."""
        self.spec = spec
        self._scope = scope
        self._wake = wake
        # Two sets of waiters: who waits for the end alone sleeps through the steps, each of which
        # would otherwise take the interpreter from the device worker.
        self._lock = threading.RLock()
        self._changed, self._ended = Waiters(self._lock), Waiters(self._lock)
        self._events: list[Event] = []
        self._listeners: list[Listener] = []
        self._output: Output | None = None

    @property
    def request_id(self) -> RequestId:
        """The request's id, unique in its engine."""
        return self.spec.request_id

    @property
    def done(self) -> bool:
        """Whether the final event has been recorded."""
        with self._lock:
            return self._final() is not None

    @property
    def num_held(self) -> int:
        """Count of the things that the request holds; none once `done`."""
        return self._scope.num_held

    def cancel(self) -> None:
        """Ask for the request to stop at its next step boundary; a finished one is not changed."""
        self._scope.cancel()
        self._wake()

    def events(self, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield every event from the first to the final one, waiting for those to come.

        Raises TimeoutError when nothing happens for `timeout_s` seconds, and InternalError where
        `wait` does.
        """
        position = 0
        while True:
            with self._lock:
                if len(self._events) == position:
                    self._require_free_settings()
            if not self._changed.wait_until(lambda: len(self._events) > position, timeout_s):  # noqa: B023
                raise TimeoutError(f"request {self.request_id} was silent for {timeout_s} s")
            event = self._events[position]
            position += 1
            yield event
            if isinstance(event, _FINAL):
                return

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event in order, those that have come first.

        It runs on the thread that records the event, often the device worker: it must neither
        wait nor raise. Returns how to end it; after the final event it is not called again.
        """
        with self._lock:
            for event in self._events:
                listener(event)
            if self._final() is None:
                self._listeners.append(listener)
        return lambda: self._unsubscribe(listener)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end, whatever it is; raises TimeoutError.

        Raises InternalError on a thread that holds the process's settings: the turn that it would
        wait for needs them.
        """
        with self._lock:
            if self._final() is None:
                self._require_free_settings()
        if not self._ended.wait_until(lambda: self._final() is not None, timeout_s):
            raise TimeoutError(f"request {self.request_id} is not done after {timeout_s} s")

    def result(self, timeout_s: float | None = None) -> Output:
        """Wait for the end and return what was made.

        Raises the request's own typed error, RequestCancelled, or TimeoutError. Interrupting the
        wait does not end the request.
        """
        self.wait(timeout_s)
        with self._lock:
            final = self._final()
        if isinstance(final, Failed):
            raise twin(final.error)
        if isinstance(final, Cancelled) or self._output is None:
            raise RequestCancelled(f"request {self.request_id} was cancelled")
        return self._output

    def tell_started(self) -> None:
        """Record that the first step is about to run."""
        self._tell(lambda r, n: Started(request_id=r, sequence=n))

    def tell_advice(self, message: str) -> None:
        """Record a sentence for the caller."""
        self._tell(lambda r, n: Advice(request_id=r, sequence=n, message=message))

    def tell_progress(self, node: str, step: int, total: int, device_s: float) -> None:
        """Record a finished step."""
        self._tell(
            lambda r, n: Progress(
                request_id=r, sequence=n, node=node, step=step, total=total, device_s=device_s
            )
        )

    def tell_chunk(self, output: str, index: int, value: object) -> None:
        """Record a finished piece of an output."""
        self._tell(
            lambda r, n: ChunkReady(
                request_id=r, sequence=n, output=output, index=index, value=value
            )
        )

    def tell_finished(self, output: Output) -> None:
        """Record success; the output is there before the event."""
        self._output = output
        device_s = output.provenance.device_s
        self._tell(lambda r, n: Finished(request_id=r, sequence=n, device_s=device_s))

    def tell_failed(self, error: OstinatoError) -> None:
        """Record failure."""
        self._tell(lambda r, n: Failed(request_id=r, sequence=n, error=error))

    def tell_cancelled(self) -> None:
        """Record cancellation."""
        self._tell(lambda r, n: Cancelled(request_id=r, sequence=n))

    def _require_free_settings(self) -> None:
        if holds_settings():
            raise InternalError(
                f"request {self.request_id} is waited for by a thread that holds the process's "
                "torch settings, which its next turn needs; wait outside of that block"
            )

    def _final(self) -> Event | None:
        last = self._events[-1] if self._events else None
        return last if isinstance(last, _FINAL) else None

    def _unsubscribe(self, listener: Listener) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def _tell(self, make: EventMaker) -> None:
        with self._lock:
            assert self._final() is None, "an event after the final one"
            event = make(self.request_id, len(self._events))
            self._events.append(event)
            for listener in tuple(self._listeners):
                listener(event)
            if self._final() is not None:
                self._wake = _asleep  # the engine is no longer needed by this handle
                self._listeners.clear()
                self._ended.wake()
            self._changed.wake()


def _asleep() -> None:
    """Wake nobody: the request has ended."""
