"""Blocks of shared memory: anonymous files whose descriptors travel with a message.

No block has a name, so that none outlives the processes that map it. The writer of a block lends
it for one message and gets it back by message; blocks are reused, and their sum is bounded. A
block is sealed against shrinking before it is sent: a peer cannot pull it from under its reader.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass

from ostinato.errors import InvalidMessage

MIN_BLOCK_BYTES = 2**18
DEFAULT_LIMIT_BYTES = 2**29
MAX_BLOCK_BYTES = 2**36
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(slots=True)
class Block:
    """A mapped block. descriptor: until it has been sent, then None."""

    number: int
    memory: mmap.mmap
    descriptor: int | None

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return len(self.memory)

    def close(self) -> None:
        """Unmap; the memory is freed once the peer has unmapped it too."""
        self.sent()
        self.memory.close()

    def sent(self) -> None:
        """Close the descriptor: the peer has its own."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class OutgoingBlocks:
    """The blocks that this side writes; used under the channel's lock."""

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """limit_bytes: of all blocks together, but for a single value that alone is larger."""
        self._limit_bytes = limit_bytes
        self._free: list[Block] = []
        self._lent: dict[int, Block] = {}
        self._retired: list[int] = []
        self._next = 0

    @property
    def num_lent(self) -> int:
        """Blocks that the peer has not returned."""
        return len(self._lent)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.size_bytes for block in (*self._free, *self._lent.values()))

    def lend(self, size_bytes: int) -> Block | None:
        """Return a block of at least this size; None while the limit needs others back first."""
        fitting = [block for block in self._free if block.size_bytes >= size_bytes]
        if fitting:
            block = min(fitting, key=lambda block: block.size_bytes)
            self._free.remove(block)
        else:
            size_bytes = max(MIN_BLOCK_BYTES, 1 << (size_bytes - 1).bit_length())
            while self._free and self.size_bytes + size_bytes > self._limit_bytes:
                self._retire(self._free.pop(0))
            if self._lent and self.size_bytes + size_bytes > self._limit_bytes:
                return None
            block = self._new(size_bytes)
        self._lent[block.number] = block
        return block

    def take_back(self, number: int) -> None:
        """Have a block again; raises InvalidMessage for one that is not lent."""
        block = self._lent.pop(number, None)
        if block is None:
            raise InvalidMessage(f"block {number} was returned, which is not lent")
        self._free.append(block)
        if self.size_bytes > self._limit_bytes:
            self._free.remove(block)
            self._retire(block)

    def retired(self) -> list[int]:
        """Return, once, the blocks that the peer shall unmap."""
        numbers, self._retired = self._retired, []
        return numbers

    def close(self) -> None:
        """Unmap all."""
        for block in (*self._free, *self._lent.values()):
            block.close()
        self._free.clear()
        self._lent.clear()

    def _retire(self, block: Block) -> None:
        block.close()
        self._retired.append(block.number)

    def _new(self, size_bytes: int) -> Block:
        descriptor = os.memfd_create("ostinato-block", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap.mmap(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._next += 1
        return Block(number=self._next, memory=memory, descriptor=descriptor)


class IncomingBlocks:
    """The blocks that the peer writes; used by the channel's reader alone."""

    def __init__(self) -> None:
        self._mapped: dict[int, mmap.mmap] = {}

    def open(self, number: int, size_bytes: int, descriptor: int) -> None:
        """Map a block and close its descriptor; raises InvalidMessage for one not as told."""
        try:
            if number in self._mapped:
                raise InvalidMessage(f"block {number} was opened twice")
            if not 0 < size_bytes <= MAX_BLOCK_BYTES:
                raise InvalidMessage(f"block {number} has {size_bytes} bytes")
            self._mapped[number] = _mapped(number, size_bytes, descriptor)
        finally:
            os.close(descriptor)

    def memory(self, number: int) -> mmap.mmap:
        """Return a block's memory, read-only; raises InvalidMessage for one that is not open."""
        if number not in self._mapped:
            raise InvalidMessage(f"block {number} is not open (open: {sorted(self._mapped)})")
        return self._mapped[number]

    def close_block(self, number: int) -> None:
        """Unmap one."""
        self.memory(number).close()
        del self._mapped[number]

    def close(self) -> None:
        """Unmap all."""
        for memory in self._mapped.values():
            memory.close()
        self._mapped.clear()


def _mapped(number: int, size_bytes: int, descriptor: int) -> mmap.mmap:
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        found = os.fstat(descriptor).st_size
    except OSError as error:
        raise InvalidMessage(f"block {number} is no anonymous file: {error}") from error
    if found != size_bytes or not seals & fcntl.F_SEAL_SHRINK:
        raise InvalidMessage(
            f"block {number} has {found} bytes and seals {seals:#x}; expected {size_bytes} bytes, "
            "sealed against shrinking"
        )
    return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)
