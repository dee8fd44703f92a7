"""Blocks of shared memory: reused, bounded, checked before they are mapped, gone when unused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import InvalidMessage
from ostinato.runtime.remote.blocks import MIN_BLOCK_BYTES, Block, IncomingBlocks, OutgoingBlocks

KIB = 1024


@pytest.fixture
def outgoing() -> OutgoingBlocks:
    return OutgoingBlocks(4 * MIN_BLOCK_BYTES)


def lent(outgoing: OutgoingBlocks, size: int) -> Block:
    block = outgoing.lend(size)
    assert block is not None
    return block


def test_a_returned_block_is_lent_again(outgoing: OutgoingBlocks) -> None:
    first = lent(outgoing, 5000)
    outgoing.take_back(first.number)
    assert lent(outgoing, 200 * KIB) is first
    assert lent(outgoing, 1) is not first
    outgoing.close()


def test_the_pool_grows_up_to_its_limit_and_then_waits(outgoing: OutgoingBlocks) -> None:
    blocks = [lent(outgoing, 1) for _ in range(4)]
    assert outgoing.lend(1) is None
    outgoing.take_back(blocks[2].number)
    assert lent(outgoing, 1) is blocks[2]
    outgoing.close()


def test_small_blocks_make_room_for_a_large_one(outgoing: OutgoingBlocks) -> None:
    small = lent(outgoing, 1)
    outgoing.take_back(small.number)
    large = lent(outgoing, 4 * MIN_BLOCK_BYTES)
    assert outgoing.retired() == [small.number]
    assert outgoing.retired() == []
    assert outgoing.size_bytes == large.size_bytes == 4 * MIN_BLOCK_BYTES
    outgoing.close()


def test_what_is_larger_than_the_limit_goes_alone_and_is_not_kept(outgoing: OutgoingBlocks) -> None:
    other = lent(outgoing, 1)
    assert outgoing.lend(9 * MIN_BLOCK_BYTES) is None
    outgoing.take_back(other.number)
    huge = lent(outgoing, 9 * MIN_BLOCK_BYTES)
    outgoing.take_back(huge.number)
    assert outgoing.size_bytes == 0
    assert outgoing.retired() == [other.number, huge.number]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * MIN_BLOCK_BYTES)), max_size=30))
def test_the_limit_is_kept(steps: list[tuple[bool, int]]) -> None:
    outgoing, limit = OutgoingBlocks(4 * MIN_BLOCK_BYTES), 4 * MIN_BLOCK_BYTES
    held: list[Block] = []
    for lends, size in steps:
        if lends and (block := outgoing.lend(size)) is not None:
            assert block.size_bytes >= size
            held.append(block)
        elif held:
            outgoing.take_back(held.pop(0).number)
        assert outgoing.num_lent == len(held)
        assert outgoing.size_bytes <= limit
    outgoing.close()


def test_a_block_that_is_not_lent_is_not_taken_back(outgoing: OutgoingBlocks) -> None:
    block = lent(outgoing, 1)
    outgoing.take_back(block.number)
    for number in (block.number, 77, -1):
        with pytest.raises(InvalidMessage, match="not lent"):
            outgoing.take_back(number)
    outgoing.close()


def test_the_reader_sees_what_was_written_and_cannot_write(outgoing: OutgoingBlocks) -> None:
    block, incoming = lent(outgoing, 5000), IncomingBlocks()
    assert block.descriptor is not None
    incoming.open(block.number, block.size_bytes, os.dup(block.descriptor))
    block.memory[10:13] = b"abc"
    assert incoming.memory(block.number)[10:13] == b"abc"
    with pytest.raises(TypeError):
        incoming.memory(block.number)[0] = 1
    incoming.close()
    outgoing.close()


def test_a_writer_cannot_pull_a_block_from_under_its_reader(outgoing: OutgoingBlocks) -> None:
    block = lent(outgoing, 5000)
    assert block.descriptor is not None
    with pytest.raises(PermissionError):
        os.ftruncate(block.descriptor, 0)
    outgoing.close()


def unsealed(size: int) -> int:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    return descriptor


def no_memory(size: int) -> int:
    return os.open("/dev/null", os.O_RDWR)


def a_file(size: int) -> int:
    descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(descriptor, size)
    return descriptor


@pytest.mark.parametrize("make", [unsealed, no_memory, a_file])
def test_only_sealed_memory_is_mapped(make: object) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidMessage, match="block 1"):
        IncomingBlocks().open(1, 4096, make(4096))  # type: ignore[operator]
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("size", [4096, 2**30, 0, -1, 2**40])
def test_a_block_of_another_size_is_refused(outgoing: OutgoingBlocks, size: int) -> None:
    block = lent(outgoing, 5000)
    assert block.descriptor is not None
    with pytest.raises(InvalidMessage, match="block 1"):
        IncomingBlocks().open(1, size, os.dup(block.descriptor))
    outgoing.close()


def test_unknown_blocks_are_refused(outgoing: OutgoingBlocks) -> None:
    incoming, block = IncomingBlocks(), lent(outgoing, 1)
    assert block.descriptor is not None
    incoming.open(1, block.size_bytes, os.dup(block.descriptor))
    with pytest.raises(InvalidMessage, match="twice"):
        incoming.open(1, block.size_bytes, os.dup(block.descriptor))
    with pytest.raises(InvalidMessage, match="not open"):
        incoming.memory(2)
    incoming.close_block(1)
    with pytest.raises(InvalidMessage, match="not open"):
        incoming.close_block(1)
    outgoing.close()


def test_nothing_is_left_when_both_close(outgoing: OutgoingBlocks) -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("ostinato-block")
        return len(os.listdir("/proc/self/fd")), maps

    before, incoming = held(), IncomingBlocks()
    for size in (1, 5000, 300 * KIB):
        block = lent(outgoing, size)
        assert block.descriptor is not None
        incoming.open(block.number, block.size_bytes, os.dup(block.descriptor))
    assert held()[1] == 6
    incoming.close()
    outgoing.close()
    assert held() == before
