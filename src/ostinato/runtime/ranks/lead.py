"""Rank 0's side of the stream: everything that the others cannot know by themselves.

Used on the device worker, but for the sign of life, which a thread of its own gives when nothing
else has been said: a long step is no death.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from ostinato.errors import OstinatoError, RankLost
from ostinato.runtime.ranks.channel import Channel
from ostinato.runtime.ranks.messages import (
    Alive,
    AnyMessage,
    Closed,
    Decided,
    Ended,
    Met,
    Model,
    Stopped,
    Unit,
    Unloaded,
    decode_answer,
    encode,
)
from ostinato.runtime.ranks.spec import arrived
from ostinato.runtime.remote.convert import error_message, read_error
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.scheduler import Decision, Outcome
from ostinato.runtime.stacking import Batching
from ostinato.tasks import RequestId

_BEATS = 5  # within the silence that means an end


class Lead:
    """Tells the followers of one engine; every method raises RankLost when one is gone."""

    def __init__(self, channel: Channel, batching: Batching) -> None:
        """Start to give signs of life. batching: what stacks have to keep, on every rank."""
        self._channel = channel
        self._batching = batching
        self._lock = threading.Lock()
        self._models: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="ostinato-lead", daemon=True)
        self._thread.start()

    def arrived(self, running: RunningRequest) -> None:
        """Tell of a request, and before the first of a model ask who has it.

        Raises InvalidMessage for a request that cannot travel: nothing was told then.
        """
        message = encode(arrived(running))
        card = running.model.card
        if card.model_id not in self._models:
            self._tell(
                Model(
                    model_id=card.model_id,
                    card_digest=card.digest(),
                    batching=self._batching,
                )
            )
            self._require(self._channel.answers(wait=True))
            self._models.add(card.model_id)
        self._send(message)

    def decided(self, decision: Decision) -> None:
        """Tell what a tick decided; who is hopeless is told as it is stopped."""
        self._tell(
            Decided(
                tick=decision.tick,
                admitted=decision.admitted,
                units=tuple(
                    Unit(request_ids=unit.request_ids, stacked=unit.stacked)
                    for unit in decision.units
                ),
            )
        )

    def met(self, request_id: RequestId, error: OstinatoError) -> None:
        """Tell of a fault that a request met between turns."""
        self._tell(Met(request_id=request_id, error=error_message(error)))

    def ended(self, request_id: RequestId, outcome: Outcome) -> None:
        """Tell how a request's last unit came out."""
        self._tell(Ended(request_id=request_id, outcome=outcome))

    def stopped(self, request_id: RequestId, error: OstinatoError | None) -> None:
        """Tell of a request that ends before its next unit; error: None for cancelled."""
        described = None if error is None else error_message(error)
        self._tell(Stopped(request_id=request_id, error=described))

    def unloaded(self, model: ResidentModel, component: str) -> None:
        """Tell that weights make room."""
        self._tell(Unloaded(model_id=model.card.model_id, component=component))

    def close(self, error: OstinatoError | None = None) -> None:
        """Say the last word, as far as anybody hears it; safe to call again."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        described = None if error is None else error_message(error)
        with suppress(RankLost):  # nobody is left to be told
            self._channel.publish(encode(Closed(error=described)))

    def _tell(self, message: AnyMessage) -> None:
        self._send(encode(message))

    def _send(self, data: bytes) -> None:
        self._require(self._channel.answers(wait=False))
        with self._lock:
            self._channel.publish(data)

    def _require(self, answers: tuple[bytes, ...]) -> None:
        for answer in map(decode_answer, answers):
            if answer is not None:
                error = read_error(answer)
                raise RankLost(f"a follower has stopped: {error}") from error

    def _beat(self) -> None:
        while not self._over.wait(self._channel.silence_s / _BEATS):
            try:
                with self._lock:
                    self._channel.publish(encode(Alive()))
            except RankLost:  # the worker learns it from its own next message
                return
