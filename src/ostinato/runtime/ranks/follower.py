"""A follower: does what rank 0 decided, in the same order, with nothing to decide of its own.

It has no policy, no ledger and no clock that matters, so every rank runs the same units on the same
requests. Messages are received by a thread of their own: a long step here is no silence there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import assert_never

import torch

from ostinato.card import ModelSource
from ostinato.env import Environment
from ostinato.errors import BadInput, OstinatoError, RankLost, UnknownModel
from ostinato.request import CancelScope
from ostinato.runtime.claim import Claim
from ostinato.runtime.failure import twin, typed
from ostinato.runtime.handle import Handle
from ostinato.runtime.ranks.channel import Channel
from ostinato.runtime.ranks.messages import (
    Alive,
    AnyMessage,
    Arrived,
    Closed,
    Decided,
    Ended,
    Met,
    Model,
    Stopped,
    Unloaded,
    decode,
    encode_answer,
)
from ostinato.runtime.ranks.spec import read_spec
from ostinato.runtime.remote.convert import error_message, read_error
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.scheduler import Outcome
from ostinato.runtime.turns import Turns

OnEnd = Callable[[Handle], None]


def follow(
    channel: Channel, sources: Sequence[ModelSource], *, on_end: OnEnd = lambda handle: None
) -> None:
    """Follow rank 0 until it closes.

    on_end: is given each request that has ended, in the order of rank 0's.
    Raises UnknownModel or BadInput for a model that is not here or has another card, RankLost when
    rank 0 is gone or this rank's units come out otherwise; rank 0 is told of whatever is raised.
    """
    follower = _Follower(
        {source.card.model_id: ResidentModel(source) for source in sources}, on_end
    )
    try:
        with torch.no_grad():
            for message in _received(channel, follower.require_same):
                if isinstance(message, Closed):
                    follower.close(message)
                    return
                follower.apply(message)
    except BaseException as error:
        told = typed(error, "a follower stopped")
        try:
            follower.abandon(told)
        finally:
            with suppress(RankLost):  # nobody is left to be told
                channel.answer(encode_answer(error_message(told)))
        raise told from error


def _received(channel: Channel, check: Callable[[Model], None]) -> Iterator[AnyMessage]:
    """Yield messages up to the closing one; raises what receiving or checking them raises.

    check: of a model, which is answered at once: rank 0 waits, and a step here may be long.
    """
    inbox = queue.SimpleQueue[AnyMessage | BaseException]()

    def receive() -> None:
        try:
            message: AnyMessage = Alive()
            while not isinstance(message, Closed):
                message = decode(channel.receive())
                if isinstance(message, Model):
                    check(message)
                    channel.answer(encode_answer(None))
                inbox.put(message)
        except BaseException as error:
            inbox.put(error)

    threading.Thread(target=receive, name="ostinato-follow", daemon=True).start()
    while True:
        found = inbox.get()
        if isinstance(found, BaseException):
            raise found
        yield found


class _Follower:
    """The requests of rank 0, on this rank."""

    def __init__(self, models: dict[str, ResidentModel], on_end: OnEnd) -> None:
        self._models = models
        self._on_end = on_end
        self._turns = Turns(Environment.read().num_threads)
        self._active: dict[str, RunningRequest] = {}
        self._outcomes: dict[str, Outcome] = {}  # of units here whose end rank 0 has yet to tell

    def apply(self, message: AnyMessage) -> None:
        """Do what a message says."""
        match message:
            case Model():
                if message.batching is not self._turns.batching:
                    self._turns = Turns(Environment.read().num_threads, message.batching)
            case Arrived():
                self._take(message)
            case Decided():
                self._do(message)
            case Met():
                self._active[message.request_id].meet(read_error(message.error))
            case Ended():
                self._compare(message)
            case Stopped():
                self._stop(message)
            case Unloaded():
                self._models[message.model_id].unload(message.component)
            case Alive() | Closed():
                pass
            case _:
                assert_never(message)

    def close(self, message: Closed) -> None:
        """End what is here as rank 0 ended it; raises RankLost where it failed."""
        if message.error is not None:
            raise RankLost(f"rank 0 has stopped: {read_error(message.error)}")
        for request_id in tuple(self._active):
            self._stop(Stopped(request_id=request_id, error=None))

    def abandon(self, error: OstinatoError) -> None:
        """Fail every request."""
        here = tuple(self._active.values())
        self._active.clear()
        for running in here:
            running.end_failed(twin(error))
            self._on_end(running.handle)

    def require_same(self, message: Model) -> None:
        """Raise UnknownModel or BadInput unless this rank has the same card; from any thread."""
        model = self._models.get(message.model_id)
        if model is None:
            raise UnknownModel(
                f"rank 0 serves {message.model_id!r}, which is not among this rank's: "
                f"{sorted(self._models)}; give every rank the same sources"
            )
        if model.card.digest() != message.card_digest:
            raise BadInput(
                f"this rank's card of {message.model_id!r} has digest {model.card.digest()}, "
                f"rank 0's has {message.card_digest}; give every rank the same sources"
            )

    def _take(self, message: Arrived) -> None:
        spec = read_spec(message)
        model, scope = self._models[spec.model], CancelScope()
        self._active[spec.request_id] = RunningRequest(
            model=model,
            program=model.program(spec.task),
            spec=spec,
            scope=scope,
            handle=Handle(spec, scope, lambda: None),
            claim=Claim(
                tenant=message.tenant,
                priority=message.priority,
                arrival=message.arrival,
                arrived_s=time.monotonic(),
                deadline_s=None,  # rank 0 tells who is late
            ),
        )

    def _do(self, message: Decided) -> None:
        self._require_compared()
        for request_id in message.admitted:
            self._active[request_id].begin()
        for unit in message.units:
            group = [self._active[request_id] for request_id in unit.request_ids]
            ran = self._turns.run(group, stacked=unit.stacked)
            for running, end in zip(group, ran.ends, strict=True):
                if end is not None:
                    end()
                    failed = running.failed
                    self._forget(running, Outcome.FAILED if failed else Outcome.FINISHED)

    def _forget(self, running: RunningRequest, outcome: Outcome) -> None:
        request_id = running.spec.request_id
        del self._active[request_id]
        self._outcomes[request_id] = outcome
        self._on_end(running.handle)

    def _compare(self, message: Ended) -> None:
        here = self._outcomes.pop(message.request_id, None)
        if here != message.outcome:
            raise RankLost(
                f"request {message.request_id} is {message.outcome.value} on rank 0 and "
                f"{'running' if here is None else here.value} here; restart all ranks"
            )

    def _require_compared(self) -> None:
        if self._outcomes:
            raise RankLost(
                f"requests {sorted(self._outcomes)} have ended here and go on on rank 0; restart "
                "all ranks"
            )

    def _stop(self, message: Stopped) -> None:
        self._require_compared()
        running = self._active.pop(message.request_id)
        if message.error is None:
            running.end_cancelled()
        else:
            running.end_failed(read_error(message.error))
        self._on_end(running.handle)
