"""How rank 0 reaches the other ranks, and how one of them says that it cannot go on.

The stream of decisions goes down by broadcast, in one order for all. What comes up is rare - one
answer to each model, and one when a rank fails - so it goes by the store that the ranks met at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store

from ostinato.errors import RankLost

SILENCE_S = 30.0


class Channel(Protocol):
    """Carries messages between rank 0 and those that follow it."""

    @property
    def silence_s(self) -> float:
        """Seconds without a message after which the other side counts as lost."""
        ...

    def publish(self, data: bytes) -> None:
        """Send to every follower; raises RankLost. On rank 0, by one thread at a time."""
        ...

    def receive(self) -> bytes:
        """Wait for what rank 0 published next; raises RankLost after `silence_s`."""
        ...

    def answer(self, data: bytes) -> None:
        """Tell rank 0; on a follower, from any thread. Raises RankLost."""
        ...

    def answers(self, *, wait: bool) -> tuple[bytes, ...]:
        """Return what followers have told since; on rank 0.

        wait: for one answer of every follower; raises RankLost after `silence_s` without it.
        """
        ...


class TorchChannel:
    """A channel over gloo, whatever backend the models' own collectives use.

    Make it on every rank at the same place: it makes a process group of its own.
    """

    def __init__(self, store: Store, *, silence_s: float = SILENCE_S) -> None:
        """Take a store that all ranks share; torch.distributed has been initialised."""
        self.silence_s = silence_s
        self._store = PrefixStore("ostinato/ranks", store)
        self._silence = timedelta(seconds=silence_s)
        # torch's stubs leave its parameters and its result open.
        new_group = cast("Callable[..., ProcessGroup]", dist.new_group)  # pyright: ignore[reportUnknownMemberType]
        self._group = new_group(backend="gloo", timeout=self._silence)
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self._num_answers = [0] * self._num_ranks
        self._lock = threading.Lock()

    def publish(self, data: bytes) -> None:
        """Broadcast the length, then the bytes."""
        self._broadcast(torch.tensor([len(data)]))
        self._broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def receive(self) -> bytes:
        """Take part in the next broadcast."""
        length = torch.zeros(1, dtype=torch.int64)
        self._broadcast(length)
        data = torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(data)
        return data.numpy().tobytes()

    def answer(self, data: bytes) -> None:
        """Put the next answer of this rank into the store."""
        try:
            with self._lock:
                self._store.set(self._key(self._rank), data.decode("latin-1"))
                self._num_answers[self._rank] += 1
        except RuntimeError as error:
            raise RankLost(f"the store of the ranks is gone ({error}); restart all") from error

    def answers(self, *, wait: bool) -> tuple[bytes, ...]:
        """Look into the store."""
        found: list[bytes] = []
        for rank in range(1, self._num_ranks):
            try:
                found += self._answer_of(rank, wait=wait)
            except RuntimeError as error:  # a timeout, or a store that is gone
                raise RankLost(
                    f"rank {rank} has not answered for {self.silence_s:g} s, or the store of the "
                    f"ranks is gone ({error}); restart all"
                ) from error
        return tuple(found)

    def _key(self, rank: int) -> str:
        return f"{rank}/{self._num_answers[rank]}"

    def _answer_of(self, rank: int, *, wait: bool) -> Iterator[bytes]:
        key = self._key(rank)
        if wait:
            self._store.wait([key], self._silence)
        if wait or self._store.check([key]):
            yield self._store.get(key).decode().encode("latin-1")
            self._num_answers[rank] += 1

    def _broadcast(self, tensor: torch.Tensor) -> None:
        try:
            dist.broadcast(tensor, src=0, group=self._group)
        except RuntimeError as error:  # all that gloo raises: a timeout, a closed connection
            other = "a follower" if self._rank == 0 else "rank 0"
            raise RankLost(
                f"{other} is gone, or has been silent for {self.silence_s:g} s; restart all ranks"
            ) from error
