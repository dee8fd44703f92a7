"""The messages between a client and an engine process: a closed union, decoded strictly.

Every message is a msgpack map with the tag of its type; an unknown tag, an unknown field or a
value of another type is an InvalidMessage. `ticket` is the client's own number of what it asked.
Arrays do not travel in messages but beside them, as `ArrayRef` says.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ostinato.errors import InvalidMessage

MAX_MESSAGE_BYTES = 16 * 2**20


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all messages are."""


class ArrayRef(Message, frozen=True, kw_only=True):
    """An array: what it is, and where its bytes are (C order).

    kind: which library's. data: the bytes of a small one; None when they lie in the block of the
    message, from `offset` on.
    """

    kind: Literal["numpy", "torch"]
    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None
    offset: int = 0


class Carrier(Message, frozen=True, kw_only=True):
    """A message with arrays. block: where those without `data` lie; None when there are none."""

    arrays: tuple[ArrayRef, ...] = ()
    block: int | None = None


class WireError(Message, frozen=True, kw_only=True):
    """A typed error. codes: of its class and of those above it, the nearest first."""

    codes: tuple[str, ...]
    message: str
    notes: tuple[str, ...] = ()


class Beat(Message, tag="beat", frozen=True, kw_only=True):
    """Nothing but a sign of life."""


class BlockOpened(Message, tag="block_opened", frozen=True, kw_only=True):
    """A block of shared memory; its file descriptor comes with the bytes of this message."""

    block: int
    size_bytes: int


class BlockReturned(Message, tag="block_returned", frozen=True, kw_only=True):
    """The reader has copied what it needs: the block is its writer's again."""

    block: int


class BlockClosed(Message, tag="block_closed", frozen=True, kw_only=True):
    """The writer uses the block no more: unmap it."""

    block: int


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    """The first message of a client. silence_s: seconds without a message that mean an end."""

    version: str
    silence_s: float


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """The answer to Hello."""


class Add(Message, tag="add", frozen=True, kw_only=True):
    """Make a model known: the JSON of its card and the folder of its files."""

    ticket: int
    card: bytes
    folder: str


class Submit(Carrier, tag="submit", frozen=True, kw_only=True):
    """Queue a request. fields: as `convert` writes them. parts: the modality of each array."""

    ticket: int
    fields: msgspec.Raw
    parts: tuple[str, ...] = ()


class Cancel(Message, tag="cancel", frozen=True, kw_only=True):
    """Stop a request at its next step boundary."""

    ticket: int


class Stop(Message, tag="stop", frozen=True, kw_only=True):
    """Close the engine and end its process."""


class Added(Message, tag="added", frozen=True, kw_only=True):
    """The model is known."""

    ticket: int


class Accepted(Message, tag="accepted", frozen=True, kw_only=True):
    """The request is queued under this id."""

    ticket: int
    request_id: str


class Refused(Message, tag="refused", frozen=True, kw_only=True):
    """What was asked was not done."""

    ticket: int
    error: WireError


class StartedTold(Message, tag="started", frozen=True, kw_only=True):
    """`Started` of a request."""

    ticket: int


class AdviceTold(Message, tag="advice", frozen=True, kw_only=True):
    """`Advice` of a request."""

    ticket: int
    message: str


class ProgressTold(Message, tag="progress", frozen=True, kw_only=True):
    """`Progress` of a request."""

    ticket: int
    node: str
    step: int
    total: int
    device_s: float


class ChunkTold(Carrier, tag="chunk", frozen=True, kw_only=True):
    """`ChunkReady` of a request; its value is the one array."""

    ticket: int
    output: str
    index: int


class FinishedTold(Carrier, tag="finished", frozen=True, kw_only=True):
    """`Finished` and the output: one array a name; fps is that of a video."""

    ticket: int
    outputs: tuple[str, ...]
    fps: float
    provenance: msgspec.Raw
    advice: tuple[str, ...]


class FailedTold(Message, tag="failed", frozen=True, kw_only=True):
    """`Failed` of a request."""

    ticket: int
    error: WireError


class CancelledTold(Message, tag="cancelled", frozen=True, kw_only=True):
    """`Cancelled` of a request."""

    ticket: int


ChannelMessage: TypeAlias = Beat | BlockOpened | BlockReturned | BlockClosed
ToEngine: TypeAlias = Hello | Add | Submit | Cancel | Stop
Event: TypeAlias = (
    StartedTold | AdviceTold | ProgressTold | ChunkTold | FinishedTold | FailedTold | CancelledTold
)
ToClient: TypeAlias = Welcome | Added | Accepted | Refused | Event
AnyMessage: TypeAlias = ChannelMessage | ToEngine | ToClient


def encode(message: AnyMessage) -> bytes:
    """Encode; raises InvalidMessage for more than 16 MiB and for text that UTF-8 cannot hold."""
    try:
        data = msgspec.msgpack.encode(message)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError, OverflowError) as error:
        raise InvalidMessage(f"{type(message).__name__} cannot be encoded: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidMessage(
            f"{type(message).__name__} has {len(data)} bytes; expected at most {MAX_MESSAGE_BYTES}"
        )
    return data


def decode(data: bytes | bytearray | memoryview) -> AnyMessage:
    """Decode; raises InvalidMessage for whatever is not exactly one of the messages."""
    try:
        return msgspec.msgpack.decode(data, type=AnyMessage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"a message does not decode: {error}") from error
