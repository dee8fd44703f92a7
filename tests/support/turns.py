"""Policies for tests: who is next is chosen among the ready, tick by tick."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from ostinato.runtime.scheduler import Rank, Ready, Snapshot, Waiting
from ostinato.tasks import RequestId


class ByChoice(ABC):
    """Asks `choose` once a tick; the others follow in the order of arrival."""

    name = "by-choice"
    _tick = -1
    _chosen = RequestId("")

    @abstractmethod
    def choose(self, ready: tuple[Ready, ...]) -> RequestId:
        """Return one of the ready requests."""

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        if snapshot.tick != self._tick:
            self._tick, self._chosen = snapshot.tick, self.choose(snapshot.ready)
        return (ready.request_id != self._chosen, ready.arrival)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        del snapshot
        return (waiting.arrival,)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        del ready, snapshot
        return False


@dataclass
class RandomTurns(ByChoice):
    """Any of the ready requests, by a seeded draw; records what it chose."""

    seed: int
    chosen: list[RequestId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(self, ready: tuple[Ready, ...]) -> RequestId:
        self.chosen.append(self._random.choice(ready).request_id)
        return self.chosen[-1]

    @property
    def num_switches(self) -> int:
        """How often the turn went to another request."""
        return sum(one != other for one, other in itertools.pairwise(self.chosen))


class FirstCome(ByChoice):
    """Whoever waited longest for a turn, the highest priority first."""

    def choose(self, ready: tuple[Ready, ...]) -> RequestId:
        return min(ready, key=lambda r: (-r.priority, r.last_turn, r.arrival)).request_id
