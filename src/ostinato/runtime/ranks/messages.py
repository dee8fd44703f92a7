"""What rank 0 tells the others: a closed union, decoded strictly, in the order of what it does.

Each message is sent before rank 0 acts on it, but for `Ended`, which says how a unit came out.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ostinato.errors import InvalidMessage
from ostinato.runtime.remote.messages import ArrayRef, Message, WireError
from ostinato.runtime.scheduler import Outcome
from ostinato.runtime.stacking import Batching


class Alive(Message, tag="alive", frozen=True, kw_only=True):
    """Nothing but a sign of life."""


class Model(Message, tag="model", frozen=True, kw_only=True):
    """Requests of a model will come; every follower answers whether it has the same card.

    batching: what rank 0 holds stacks to; a rank that refused one would come out otherwise.
    """

    model_id: str
    card_digest: str
    batching: Batching


class Arrived(Message, tag="arrived", frozen=True, kw_only=True):
    """A request. spec: its fields but for the initial latents, which are `latents`."""

    spec: msgspec.Raw
    latents: ArrayRef | None
    tenant: str
    priority: int
    arrival: int


class Unit(Message, frozen=True, kw_only=True):
    """A unit of one request or several; stacked: all their calls are one forward."""

    request_ids: tuple[str, ...]
    stacked: bool


class Decided(Message, tag="decided", frozen=True, kw_only=True):
    """A tick: who begins, and which units run."""

    tick: int
    admitted: tuple[str, ...]
    units: tuple[Unit, ...]


class Met(Message, tag="met", frozen=True, kw_only=True):
    """A request met a fault between turns: its next turn raises it."""

    request_id: str
    error: WireError


class Ended(Message, tag="ended", frozen=True, kw_only=True):
    """The unit that ran was a request's last."""

    request_id: str
    outcome: Outcome


class Stopped(Message, tag="stopped", frozen=True, kw_only=True):
    """A request ends before its next unit. error: why it fails, None for one that is cancelled."""

    request_id: str
    error: WireError | None


class Unloaded(Message, tag="unloaded", frozen=True, kw_only=True):
    """The weights of a component make room."""

    model_id: str
    component: str


class Closed(Message, tag="closed", frozen=True, kw_only=True):
    """The last message. error: what ended rank 0, None where it was closed."""

    error: WireError | None


AnyMessage: TypeAlias = (
    Alive | Model | Arrived | Decided | Met | Ended | Stopped | Unloaded | Closed
)
Answer: TypeAlias = WireError | None


def encode(message: AnyMessage) -> bytes:
    """Encode; raises InvalidMessage for text that UTF-8 cannot hold."""
    try:
        return msgspec.msgpack.encode(message)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError, OverflowError) as error:
        raise InvalidMessage(f"{type(message).__name__} cannot be encoded: {error}") from error


def decode(data: bytes) -> AnyMessage:
    """Decode; raises InvalidMessage for whatever is not exactly one of the messages."""
    try:
        return msgspec.msgpack.decode(data, type=AnyMessage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"a message does not decode: {error}") from error


def encode_answer(answer: Answer) -> bytes:
    """Encode what a follower answers."""
    return msgspec.msgpack.encode(answer)


def decode_answer(data: bytes) -> Answer:
    """Decode an answer; raises InvalidMessage."""
    try:
        return msgspec.msgpack.decode(data, type=WireError | None)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"an answer does not decode: {error}") from error
