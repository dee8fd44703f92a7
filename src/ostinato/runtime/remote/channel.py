"""A channel: one connection, two threads, messages and arrays both ways, signs of life.

The writer sends what is queued and a beat when nothing is; the reader tells the owner of each
message. Neither waits for a device. A message whose arrays find no block waits its turn while what
needs none - returned blocks, beats - goes on, so two full sides never wait for each other.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from ostinato.errors import InvalidMessage
from ostinato.runtime.remote.arrays import INLINE_BYTES, Array, Bytes, flat, offsets, restored
from ostinato.runtime.remote.blocks import (
    DEFAULT_LIMIT_BYTES,
    Block,
    IncomingBlocks,
    OutgoingBlocks,
)
from ostinato.runtime.remote.frames import FrameSocket
from ostinato.runtime.remote.messages import (
    AnyMessage,
    ArrayRef,
    Beat,
    BlockClosed,
    BlockOpened,
    BlockReturned,
    Carrier,
    decode,
    encode,
)

READER_NAME, WRITER_NAME = "ostinato-remote-reader", "ostinato-remote-writer"
BEAT_S = 0.25

OnMessage = Callable[[AnyMessage, tuple[Array, ...]], None]
OnEnd = Callable[[str], None]


class Channel:
    """Sends from any thread; tells its owner from its reader thread."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        on_message: OnMessage,
        on_end: OnEnd,
        silence_s: float,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> None:
        """Take over a connected socket.

        on_message: is told of each message and its arrays; InvalidMessage that it raises ends the
        channel. on_end: is told once, with the reason, when no message will come any more.
        silence_s: so many seconds without a message, a beat included, are an end too.
        """
        self._frames = FrameSocket(connection)
        self._on_message = on_message
        self._on_end = on_end
        self.silence_s = silence_s
        self._outgoing = OutgoingBlocks(limit_bytes)
        self._incoming = IncomingBlocks()
        self._changed = threading.Condition()
        self._urgent: deque[AnyMessage] = deque()
        self._queue: deque[_Outgoing] = deque()
        self._ending = False
        self._reader = threading.Thread(target=self._read, name=READER_NAME, daemon=True)
        self._writer = threading.Thread(target=self._write, name=WRITER_NAME, daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._reader.start()
        self._writer.start()

    def send(self, message: AnyMessage, arrays: Sequence[Array] = ()) -> None:
        """Queue a message; whoever waits for an answer to it hears of an end by `on_end`.

        The arrays must not change until they are sent. Raises InvalidMessage for what cannot
        travel.
        """
        data = encode(message)
        flattened = [flat(array) for array in arrays]
        with self._changed:
            if self._ending:
                return
            self._queue.append(_Outgoing(message, data, flattened))
            self._changed.notify()

    def finish(self, timeout_s: float) -> None:
        """Send what is queued, for so many seconds at most, then end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self._ending, timeout_s)
        self.end()

    def end(self) -> None:
        """End the stream; both threads then end by themselves. Safe from any of them."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._frames.end()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the channel has ended and its owner has been told; whether that is so."""
        self._reader.join(timeout_s)
        return not self._reader.is_alive()

    def _read(self) -> None:
        reason = "the connection was closed"
        try:
            while (frame := self._frames.receive(self.silence_s)) is not None:
                self._take(decode(frame))
        except (InvalidMessage, OSError) as error:
            reason = str(error)
        finally:
            self.end()
            self._writer.join()
            self._frames.close()
            self._incoming.close()
            self._outgoing.close()
            self._on_end(reason)

    def _take(self, message: AnyMessage) -> None:
        match message:
            case Beat():
                pass
            case BlockOpened():
                descriptor = self._frames.take_descriptor()
                self._incoming.open(message.block, message.size_bytes, descriptor)
            case BlockClosed():
                self._incoming.close_block(message.block)
            case BlockReturned():
                with self._changed:
                    self._outgoing.take_back(message.block)
                    self._changed.notify()
            case _:
                self._on_message(message, self._arrays(message))

    def _arrays(self, message: AnyMessage) -> tuple[Array, ...]:
        if not isinstance(message, Carrier):
            return ()
        block = None if message.block is None else self._incoming.memory(message.block)
        arrays = tuple(restored(ref, block) for ref in message.arrays)
        if message.block is not None:
            with self._changed:
                self._urgent.append(BlockReturned(block=message.block))
                self._changed.notify()
        return arrays

    def _write(self) -> None:
        try:
            while self._write_next():
                pass
        except OSError:  # the peer is gone: the reader finds the end and says so
            pass
        finally:
            self.end()

    def _write_next(self) -> bool:
        """Send the next message that can go, or a beat; False at the end."""
        urgent: list[AnyMessage] = []
        placed = None
        with self._changed:
            beat_at = time.monotonic() + BEAT_S
            while not (self._ending or self._urgent or (placed := self._place())):
                rest_s = beat_at - time.monotonic()
                if rest_s <= 0:
                    urgent.append(Beat())
                    break
                self._changed.wait(rest_s)
            if self._ending:
                return False
            urgent += self._urgent
            self._urgent.clear()
            urgent += (BlockClosed(block=number) for number in self._outgoing.retired())
        for message in urgent:
            self._frames.send(encode(message))
        if placed is not None:
            self._send(placed)
        return True

    def _place(self) -> _Outgoing | None:
        """Find a place for what is first in the queue; None while it has none."""
        if not self._queue:
            return None
        first = self._queue[0]
        size_bytes = first.size_bytes
        if first.block is None and size_bytes > INLINE_BYTES:
            first.block = self._outgoing.lend(size_bytes)
            return first if first.block is not None else None
        return first

    def _send(self, placed: _Outgoing) -> None:
        block = placed.block
        if block is not None and block.descriptor is not None:
            opened = BlockOpened(block=block.number, size_bytes=block.size_bytes)
            self._frames.send(encode(opened), block.descriptor)
            block.sent()
        self._frames.send(placed.encoded())
        with self._changed:
            self._queue.popleft()
            self._changed.notify_all()


class _Outgoing:
    """A message in the queue, with the bytes of its arrays and their place."""

    def __init__(
        self, message: AnyMessage, data: bytes, arrays: Sequence[tuple[ArrayRef, Bytes]]
    ) -> None:
        self._message = message
        self._data = data
        self._arrays = arrays
        self._offsets, self.size_bytes = offsets([part for _, part in arrays])
        self.block: Block | None = None

    def encoded(self) -> bytes:
        """Put the arrays where they belong and return the message that says where."""
        if not isinstance(self._message, Carrier) or not self._arrays:
            return self._data
        block = self.block
        refs = [
            replace(ref, data=part.tobytes()) if block is None else replace(ref, offset=start)
            for (ref, part), start in zip(self._arrays, self._offsets, strict=True)
        ]
        if block is not None:
            for (_, part), start in zip(self._arrays, self._offsets, strict=True):
                np.frombuffer(block.memory, np.uint8, len(part), start)[:] = part
        number = None if block is None else block.number
        return encode(replace(self._message, arrays=tuple(refs), block=number))
