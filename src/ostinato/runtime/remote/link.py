"""One connection to an engine process: questions and their answers, requests and their events."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import TypeAlias, TypeVar

from ostinato.card import ModelSource
from ostinato.errors import EngineClosed, InvalidMessage, OstinatoError
from ostinato.request import CancelScope, GenerationSpec, Request
from ostinato.runtime.handle import Handle
from ostinato.runtime.remote import messages as m
from ostinato.runtime.remote.arrays import Array
from ostinato.runtime.remote.channel import Channel
from ostinato.runtime.remote.convert import (
    read_chunk,
    read_error,
    read_output,
    request_arrays,
    request_fields,
)
from ostinato.tasks import RequestId
from ostinato.wire import canonical

Explain: TypeAlias = "Callable[[Link, str], OstinatoError | None]"
T = TypeVar("T")

CLOSED = "the engine is closed; make a new one"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submitted:
    """A request without an answer. keep: what its handle holds until its end."""

    spec: GenerationSpec
    keep: object
    answer: Future[Handle]


class Link:
    """Used from any thread; answers and events come on the channel's reader thread."""

    def __init__(
        self, connection: socket.socket, *, explain: Explain, start_s: float, silence_s: float
    ) -> None:
        """Take over a connection and greet the engine.

        explain: is told once, with a reason, that the connection has ended; returns what
        unfinished requests fail with, None for cancelled ones. start_s: seconds for the engine to
        answer the greeting; silence_s: without a sign of life that mean an end from then on.
        """
        self._explain = explain
        self._silence_s = silence_s
        self._tickets = itertools.count(1)
        self._lock = threading.Lock()
        self._over = False
        self._error: OstinatoError | None = None
        self._adds: dict[int, Future[None]] = {}
        self._submits: dict[int, _Submitted] = {}
        self._handles: dict[int, Handle] = {}
        self.num_finished = 0
        self.welcome: Future[None] = Future()
        self._channel = Channel(
            connection, on_message=self._take, on_end=self._ended, silence_s=start_s
        )
        self._channel.send(m.Hello(version=version("ostinato"), silence_s=silence_s))
        self._channel.start()

    def add(self, source: ModelSource) -> Future[None]:
        """Ask for a model to be made known."""
        ticket, answer = next(self._tickets), Future[None]()
        message = m.Add(ticket=ticket, card=canonical(source.card), folder=str(source.folder))
        with self._lock:
            if self._over:
                answer.set_exception(self._failure())
            else:
                self._adds[ticket] = answer
                self._channel.send(message)
        return answer

    def submit(self, request: Request, spec: GenerationSpec, keep: object) -> Future[Handle]:
        """Ask for a request to be queued; when the answer is cancelled, the request will be too.

        keep: what the handle holds until the request has ended. Raises InvalidRequest.
        """
        ticket, answer = next(self._tickets), Future[Handle]()
        parts, arrays = request_arrays(request, spec)
        message = m.Submit(ticket=ticket, fields=request_fields(request), parts=parts)
        with self._lock:
            if self._over:
                answer.set_exception(self._failure())
            else:
                self._submits[ticket] = _Submitted(spec=spec, keep=keep, answer=answer)
                self._channel.send(message, arrays)
        return answer

    def stop(self) -> None:
        """Ask for the engine to be closed and its process to end."""
        self._channel.send(m.Stop())

    def finish(self, timeout_s: float) -> None:
        """Send what is queued, then end the connection; the engine cancels our requests."""
        self._channel.finish(timeout_s)

    def end(self) -> None:
        """End the connection."""
        self._channel.end()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the connection has ended and all have heard of it; tell whether it has."""
        return self._channel.join(timeout_s)

    def _take(self, message: m.AnyMessage, arrays: tuple[Array, ...]) -> None:
        match message:
            case m.Welcome():
                self._channel.silence_s = self._silence_s
                self.welcome.set_result(None)
            case m.Added():
                _take_from(self._adds, message.ticket).set_result(None)
            case m.Accepted():
                self._accept(message)
            case m.Refused():
                _refuse(self._answer(message.ticket), read_error(message.error))
            case _:
                self._tell(message, arrays)

    def _accept(self, message: m.Accepted) -> None:
        submitted = _take_from(self._submits, message.ticket)
        ticket, keep = message.ticket, submitted.keep
        spec = replace(submitted.spec, request_id=RequestId(message.request_id))
        handle = Handle(spec, CancelScope(), partial(self._cancel, ticket, keep))
        self._handles[ticket] = handle
        if submitted.answer.set_running_or_notify_cancel():
            submitted.answer.set_result(handle)
        else:  # whoever asked was interrupted, and nobody has the handle
            handle.cancel()

    def _cancel(self, ticket: int, keep: object) -> None:
        self._channel.send(m.Cancel(ticket=ticket))

    def _answer(self, ticket: int) -> Future[None] | Future[Handle]:
        if ticket in self._adds:
            return self._adds.pop(ticket)
        return _take_from(self._submits, ticket).answer

    def _tell(self, message: m.AnyMessage, arrays: tuple[Array, ...]) -> None:
        match message:
            case m.StartedTold():
                self._handle(message.ticket).tell_started()
            case m.AdviceTold():
                self._handle(message.ticket).tell_advice(message.message)
            case m.ProgressTold():
                self._handle(message.ticket).tell_progress(
                    message.node, message.step, message.total, message.device_s
                )
            case m.ChunkTold():
                value = read_chunk(arrays)
                self._handle(message.ticket).tell_chunk(message.output, message.index, value)
            case m.FinishedTold():
                output = read_output(message, arrays, self._handle(message.ticket).spec)
                self.num_finished += 1
                self._handles.pop(message.ticket).tell_finished(output)
            case m.FailedTold():
                _take_from(self._handles, message.ticket).tell_failed(read_error(message.error))
            case m.CancelledTold():
                _take_from(self._handles, message.ticket).tell_cancelled()
            case _:
                raise InvalidMessage(f"an engine does not send {type(message).__name__}")

    def _handle(self, ticket: int) -> Handle:
        if ticket not in self._handles:
            raise InvalidMessage(f"ticket {ticket} is not that of a running request")
        return self._handles[ticket]

    def _ended(self, reason: str) -> None:
        """Let everyone who waits hear of it; State will resume the requests here."""
        error = self._explain(self, reason)
        with self._lock:
            self._over, self._error = True, error
        waiting = [self.welcome, *self._adds.values(), *(s.answer for s in self._submits.values())]
        for answer in waiting:
            if not answer.done():
                _refuse(answer, self._failure())
        for handle in self._handles.values():
            if error is None:
                handle.tell_cancelled()
            else:
                handle.tell_failed(error)
        self._adds, self._submits, self._handles = {}, {}, {}

    def _failure(self) -> OstinatoError:
        return self._error or EngineClosed(CLOSED)


def _take_from(waiting: dict[int, T], ticket: int) -> T:
    if ticket not in waiting:
        raise InvalidMessage(f"ticket {ticket} waits for no such message")
    return waiting.pop(ticket)


def _refuse(answer: Future[None] | Future[Handle], error: OstinatoError) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)
