"""A turn policy for tests: any of the ready requests, by a seeded draw."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from ostinato.runtime import ReadyRequest
from ostinato.tasks import RequestId


@dataclass
class RandomTurns:
    """Any of the ready requests, by a seeded draw; records what it chose."""

    seed: int
    chosen: list[RequestId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(self, ready: tuple[ReadyRequest, ...]) -> RequestId:
        self.chosen.append(self._random.choice(ready).request_id)
        return self.chosen[-1]

    @property
    def num_switches(self) -> int:
        """How often the turn went to another request."""
        return sum(one != other for one, other in itertools.pairwise(self.chosen))
