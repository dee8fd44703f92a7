"""A channel: order, arrays both ways through few blocks, beats, an end that everyone hears of."""

from __future__ import annotations

import fcntl
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ostinato.errors import InvalidMessage
from ostinato.runtime.remote import messages as m
from ostinato.runtime.remote.arrays import Array
from ostinato.runtime.remote.blocks import MIN_BLOCK_BYTES
from ostinato.runtime.remote.channel import READER_NAME, WRITER_NAME, Channel
from ostinato.runtime.remote.frames import FrameSocket

WAIT_S = 60.0


class Side:
    """One end: what it heard, and why it ended."""

    def __init__(
        self, connection: socket.socket, silence_s: float = WAIT_S, limit_bytes: int = 2**24
    ) -> None:
        self.heard: queue.Queue[tuple[m.AnyMessage, tuple[Array, ...]]] = queue.Queue()
        self.reasons: queue.Queue[str] = queue.Queue()
        self.channel = Channel(
            connection,
            on_message=lambda message, arrays: self.heard.put((message, arrays)),
            on_end=self.reasons.put,
            silence_s=silence_s,
            limit_bytes=limit_bytes,
        )
        self.channel.start()

    def next(self) -> tuple[m.AnyMessage, tuple[Array, ...]]:
        return self.heard.get(timeout=WAIT_S)

    def reason(self) -> str:
        return self.reasons.get(timeout=WAIT_S)


def chunk(index: int) -> m.ChunkTold:
    return m.ChunkTold(ticket=1, output="video", index=index)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    def held() -> tuple[int, int, list[str]]:
        ours = (READER_NAME, WRITER_NAME)
        threads = [t.name for t in threading.enumerate() if t.name in ours]
        maps = Path("/proc/self/maps").read_text().count("ostinato-block")
        return len(os.listdir("/proc/self/fd")), maps, threads

    before = held()
    yield
    deadline = time.monotonic() + WAIT_S
    while held() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() == before


@pytest.fixture
def pair(nothing_left: None) -> Iterator[tuple[Side, Side]]:
    """Two sides, each with room for two small blocks."""
    one, other = (Side(end, limit_bytes=2 * MIN_BLOCK_BYTES) for end in socket.socketpair())
    yield one, other
    for side in (one, other):
        side.channel.end()
    for side in (one, other):
        assert side.channel.join(WAIT_S)


def test_messages_arrive_in_order(pair: tuple[Side, Side]) -> None:
    one, other = pair
    for ticket in range(500):
        one.channel.send(m.Cancel(ticket=ticket))
    assert [other.next()[0] for _ in range(500)] == [m.Cancel(ticket=n) for n in range(500)]


def test_both_sides_stream_more_than_their_blocks_hold(pair: tuple[Side, Side]) -> None:
    """Small, large and larger than the limit, both ways at once: neither waits for ever."""
    draw = np.random.default_rng(1)
    sizes = [1, 4096, 4097, 100_000, MIN_BLOCK_BYTES, 3 * MIN_BLOCK_BYTES, 2_000_000]
    arrays = [draw.integers(0, 256, size, np.uint8) for size in sizes * 3]
    for index, array in enumerate(arrays):
        for side in pair:
            side.channel.send(chunk(index), [array, array[:100].astype(np.float32)])
    for side in pair:
        for index, array in enumerate(arrays):
            message, (found, also) = side.next()
            assert isinstance(message, m.ChunkTold)
            assert message.index == index
            assert np.array_equal(found, array)
            assert also.dtype == np.float32


def test_small_values_take_no_block(pair: tuple[Side, Side]) -> None:
    pair[0].channel.send(chunk(0), [np.zeros(4096, np.uint8)])
    message, _ = pair[1].next()
    assert isinstance(message, m.ChunkTold)
    assert message.block is None


def test_what_cannot_travel_is_refused_at_once(pair: tuple[Side, Side]) -> None:
    with pytest.raises(InvalidMessage):
        pair[0].channel.send(chunk(0), [np.array(["a"])])
    pair[0].channel.send(chunk(1))
    assert pair[1].next()[0] == chunk(1)


def test_beats_keep_a_quiet_channel(nothing_left: None) -> None:
    one, other = (Side(end, silence_s=2.0) for end in socket.socketpair())
    time.sleep(2.5)
    one.channel.send(m.Stop())
    assert other.next()[0] == m.Stop()
    one.channel.end()
    assert other.reason()
    assert one.reason()


def test_silence_is_an_end(nothing_left: None) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        side = Side(ours, silence_s=0.2)
        assert side.reason() == "nothing was heard for 0.2 s"


def test_the_last_words_are_heard(pair: tuple[Side, Side]) -> None:
    one, other = pair
    for index in range(20):
        one.channel.send(chunk(index), [np.full(50_000, index, np.uint8)])
    one.channel.finish(WAIT_S)
    for index in range(20):
        assert other.next()[1][0][0] == index
    assert other.reason() == "the connection was closed"


def test_parting_takes_no_longer_than_the_last_words(pair: tuple[Side, Side]) -> None:
    for index in range(2000):
        pair[0].channel.send(chunk(index))
    started = time.monotonic()
    pair[0].channel.finish(WAIT_S)
    assert time.monotonic() - started < WAIT_S / 2
    for index in range(2000):
        assert pair[1].next()[0] == chunk(index)


def test_a_peer_that_does_not_read_cannot_hold_us(nothing_left: None) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        side = Side(ours)
        for index in range(3000):
            side.channel.send(chunk(index), [np.zeros(4000, np.uint8)])
        side.channel.finish(0.1)
        assert side.reason()


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def told(**fields: object) -> bytes:
    return framed(msgspec.msgpack.encode(fields))


LIES = {
    "a frame beyond the limit": struct.pack("<I", m.MAX_MESSAGE_BYTES + 1),
    "a frame that is cut off": framed(b"12345678")[:-2],
    "an unknown tag": told(type="launch"),
    "an unknown field": told(type="beat", loud=True),
    "a block without its descriptor": told(type="block_opened", block=1, size_bytes=4096),
    "a block that is not lent": told(type="block_returned", block=1),
    "a block that is not open": told(type="block_closed", block=1),
    "arrays in no block": told(
        type="chunk",
        ticket=1,
        output="video",
        index=0,
        arrays=[{"kind": "numpy", "dtype": "uint8", "shape": [9]}],
        block=4,
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_lie_ends_the_channel(lie: bytes, nothing_left: None) -> None:
    ours, theirs = socket.socketpair()
    side = Side(ours)
    with theirs:
        theirs.sendall(lie)
        theirs.shutdown(socket.SHUT_WR)
        assert side.reason() != "the connection was closed"
    assert side.heard.empty()


def test_descriptors_that_nobody_announced_end_the_channel(nothing_left: None) -> None:
    ours, theirs = socket.socketpair()
    side = Side(ours)
    with theirs:
        for _ in range(9):
            socket.send_fds(theirs, [told(type="beat")], [0] * 8)
        assert "descriptors" in side.reason()


def test_a_lie_about_offsets_ends_the_channel(nothing_left: None) -> None:
    ours, theirs = socket.socketpair()
    side = Side(ours)
    frames = FrameSocket(theirs)
    descriptor = os.memfd_create("block", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    frames.send(m.encode(m.BlockOpened(block=1, size_bytes=4096)), descriptor)
    os.close(descriptor)
    for offset in (0, 4096 - 9, 4096 - 8):
        ref = m.ArrayRef(kind="numpy", dtype="uint8", shape=(9,), offset=offset)
        frames.send(m.encode(m.ChunkTold(ticket=1, output="v", index=0, arrays=(ref,), block=1)))
    assert "takes 9 bytes from 4088, but there are 4096" in side.reason()
    assert side.heard.qsize() == 2
    frames.close()
