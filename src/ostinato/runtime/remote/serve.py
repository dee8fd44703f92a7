"""The engine process: one engine, several clients, each on a channel of its own."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch

from ostinato.backend.importing import load_object
from ostinato.card import ModelCard, ModelSource
from ostinato.errors import InvalidMessage
from ostinato.request import (
    Advice,
    Cancelled,
    ChunkReady,
    Event,
    Failed,
    Finished,
    Progress,
    Started,
)
from ostinato.runtime.failure import typed
from ostinato.runtime.protocol import EngineProtocol, RequestHandle
from ostinato.runtime.remote import messages as m
from ostinato.runtime.remote.arrays import Array
from ostinato.runtime.remote.channel import Channel
from ostinato.runtime.remote.convert import error_message, output_message, read_request
from ostinato.runtime.remote.process import watch_parent
from ostinato.wire import decode

_FIRST_SILENCE_S = 30.0  # until a client's Hello has said what is its own
_MAX_SILENCE_S = 3600.0
_FLUSH_S = 5.0  # for clients to take their last messages when the engine has been closed


class EngineServer:
    """Accepts clients until one of them, or its owner, ends it."""

    def __init__(self, engine: EngineProtocol, listener: socket.socket) -> None:
        """Serve this engine at a listening socket."""
        self._engine = engine
        self._listener = listener
        self._sessions: set[ClientSession] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self._waker, self._woken = socket.socketpair()

    def serve(self) -> None:
        """Accept clients until `stop`; then close the engine and let every client hear of it."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while self._woken.fileno() not in {number for number, _ in poll.poll()}:
            connection, _ = self._listener.accept()
            session = ClientSession(self._engine, connection, self.stop, self._forget)
            with self._lock:
                self._sessions.add(session)
            session.start()
        self._engine.close()
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.finish(_FLUSH_S)
        with self._lock:
            self._waker.close()
            self._woken.close()

    def stop(self) -> None:
        """Have `serve` return; from any thread, and as often as anybody asks."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._waker.send(b"x")

    def _forget(self, session: ClientSession) -> None:
        with self._lock:
            self._sessions.discard(session)


class ClientSession:
    """One client: what it asked for, and what it is told. A client that goes ends its requests."""

    def __init__(
        self,
        engine: EngineProtocol,
        connection: socket.socket,
        stop: Callable[[], None],
        forget: Callable[[ClientSession], None],
    ) -> None:
        """Take over a connection; `forget` is told when it has ended."""
        self._engine = engine
        self._stop = stop
        self._forget = forget
        self._greeted = False
        self._handles: dict[int, RequestHandle] = {}
        self._channel = Channel(
            connection,
            on_message=self._take,
            on_end=self._ended,
            silence_s=_FIRST_SILENCE_S,
        )

    def start(self) -> None:
        """Begin to listen."""
        self._channel.start()

    def finish(self, timeout_s: float) -> None:
        """Send what the client has not been told yet, then part."""
        self._channel.finish(timeout_s)
        self._channel.join()

    def _ended(self, reason: str) -> None:
        for handle in list(self._handles.values()):
            handle.cancel()
        self._forget(self)

    def _take(self, message: m.AnyMessage, arrays: tuple[Array, ...]) -> None:
        if isinstance(message, m.Hello):
            self._greet(message)
            return
        if not self._greeted:
            raise InvalidMessage(f"the first message is {type(message).__name__}; expected Hello")
        match message:
            case m.Add():
                self._add(message)
            case m.Submit():
                self._submit(message, arrays)
            case m.Cancel():
                handle = self._handles.get(message.ticket)
                if handle is not None:  # else it has ended in the meantime
                    handle.cancel()
            case m.Stop():
                self._stop()
            case _:
                raise InvalidMessage(f"a client does not send {type(message).__name__}")

    def _greet(self, hello: m.Hello) -> None:
        ours = version("ostinato")
        if hello.version != ours:
            raise InvalidMessage(f"the client is ostinato {hello.version}; this engine is {ours}")
        if not 0 < hello.silence_s <= _MAX_SILENCE_S:
            raise InvalidMessage(f"silence_s is {hello.silence_s}; expected at most an hour")
        self._channel.silence_s = hello.silence_s
        self._greeted = True
        self._channel.send(m.Welcome())

    def _add(self, message: m.Add) -> None:
        try:
            card = decode(message.card, ModelCard, what="the card")
            self._engine.add(ModelSource(card=card, folder=Path(message.folder)))
        except Exception as error:
            self._refuse(message.ticket, error)
            return
        self._channel.send(m.Added(ticket=message.ticket))

    def _submit(self, message: m.Submit, arrays: tuple[Array, ...]) -> None:
        if message.ticket in self._handles:
            raise InvalidMessage(f"ticket {message.ticket} was used twice")
        request = read_request(message.fields, message.parts, arrays)
        try:
            handle = self._engine.submit(request)
        except Exception as error:
            self._refuse(message.ticket, error)
            return
        self._handles[message.ticket] = handle
        self._channel.send(m.Accepted(ticket=message.ticket, request_id=handle.request_id))
        handle.subscribe(partial(self._tell, message.ticket, handle))

    def _refuse(self, ticket: int, error: Exception) -> None:
        refusal = error_message(typed(error, "the engine could not take this"))
        self._channel.send(m.Refused(ticket=ticket, error=refusal))

    def _tell(self, ticket: int, handle: RequestHandle, event: Event) -> None:
        """Pass an event on; runs on the device worker, so it only queues."""
        if ticket not in self._handles:
            return
        if isinstance(event, Finished | Failed | Cancelled):
            del self._handles[ticket]
        try:
            message, arrays = _told(ticket, handle, event)
            self._channel.send(message, arrays)
        except InvalidMessage as error:  # a value that cannot travel: this request has failed
            self._handles.pop(ticket, None)
            handle.cancel()
            self._channel.send(m.FailedTold(ticket=ticket, error=error_message(error)))


def _told(
    ticket: int, handle: RequestHandle, event: Event
) -> tuple[m.AnyMessage, tuple[Array, ...]]:
    match event:
        case Started():
            return m.StartedTold(ticket=ticket), ()
        case Advice():
            return m.AdviceTold(ticket=ticket, message=event.message), ()
        case Progress():
            return _progress(ticket, event), ()
        case ChunkReady():
            chunk = m.ChunkTold(ticket=ticket, output=event.output, index=event.index)
            return chunk, (cast("Array", event.value),)
        case Finished():
            return output_message(ticket, handle.result())
        case Failed():
            return m.FailedTold(ticket=ticket, error=error_message(event.error)), ()
        case Cancelled():
            return m.CancelledTold(ticket=ticket), ()


def _progress(ticket: int, event: Progress) -> m.ProgressTold:
    return m.ProgressTold(
        ticket=ticket,
        node=event.node,
        step=event.step,
        total=event.total,
        device_s=event.device_s,
    )


def main(arguments: Sequence[str]) -> None:
    """Run the engine process: folder, listening descriptor, torch threads, engine factory."""
    folder, number, threads, factory = arguments
    parent = os.getppid()
    with contextlib.suppress(OSError):  # what a library prints is no result of ours
        os.dup2(2, 1)
    watch = threading.Thread(target=watch_parent, args=(parent, Path(folder)), daemon=True)
    watch.start()
    torch.set_num_threads(int(threads))
    make = cast("Callable[[], EngineProtocol]", load_object(factory))
    with socket.socket(fileno=int(number)) as listener:
        EngineServer(make(), listener).serve()
