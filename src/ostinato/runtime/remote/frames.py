"""Frames over a stream socket: a length, then so many bytes; descriptors come along in order."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
from collections import deque

from ostinato.errors import InvalidMessage
from ostinato.runtime.remote.messages import MAX_MESSAGE_BYTES

_LENGTH = struct.Struct("<I")
_READ_BYTES = 2**16
_MAX_PENDING_DESCRIPTORS = 64
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_PENDING_DESCRIPTORS * array.array("i").itemsize)


class FrameSocket:
    """One thread may send and another receive; any may end both."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected, blocking socket."""
        self._socket = connection
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Send one frame; raises OSError when the peer is gone."""
        framed = memoryview(_LENGTH.pack(len(data)) + data)
        if descriptor is not None:
            framed = framed[socket.send_fds(self._socket, [framed], [descriptor]) :]
        self._socket.sendall(framed)

    def receive(self, silence_s: float) -> bytes | None:
        """Return the next frame, None at the end of the stream.

        Raises TimeoutError when nothing comes for `silence_s` seconds, OSError when the connection
        breaks and InvalidMessage for a frame that is too long or that the end cuts off.
        """
        while (frame := self._take()) is None:
            if not self._poll.poll(silence_s * 1000):
                raise TimeoutError(f"nothing was heard for {silence_s:g} s")
            if not self._read():
                if self._buffer:
                    raise InvalidMessage(f"the stream ended {len(self._buffer)} bytes into a frame")
                return None
        return frame

    def take_descriptor(self) -> int:
        """Return the descriptor that came first; raises InvalidMessage when none is there."""
        if not self._descriptors:
            raise InvalidMessage("a block was opened without its descriptor")
        return self._descriptors.popleft()

    def end(self) -> None:
        """End the stream in both directions: whoever sends or receives finds its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and what descriptors nobody took, once both threads have ended."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _take(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE_BYTES:
            raise InvalidMessage(f"a frame of {length} bytes; expected at most {MAX_MESSAGE_BYTES}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def _read(self) -> bool:
        """Read what is there; False at the end of the stream."""
        data, ancillary, flags, _ = self._socket.recvmsg(
            _READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                self._descriptors.extend(received)
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MAX_PENDING_DESCRIPTORS:
            raise InvalidMessage("more descriptors came than messages that announce them")
        self._buffer += data
        return bool(data)
