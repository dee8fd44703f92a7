"""What requests of the traffic are going to meet, how each may end, and how they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from ostinato.errors import DeadlineExceeded, InvalidCheckpoint, NonFinite
from ostinato.request import Cancelled, Failed, FinalEvent, Finished


class Fate(StrEnum):
    """What a request is going to meet."""

    PLAIN = "plain"
    SAVED = "saved"
    TORN = "torn"
    CANCELLED = "cancelled"
    LATE = "late"
    OVERFLOWING = "overflowing"
    UNREADABLE = "unreadable"
    CANCELLED_IN_STACK = "cancelled_in_stack"
    OVERFLOWING_IN_STACK = "overflowing_in_stack"
    NO_ROOM_FOR_STACK = "no_room_for_stack"


SHARES = (
    (Fate.PLAIN, 6),
    (Fate.SAVED, 1),
    (Fate.TORN, 1),
    (Fate.CANCELLED, 6),
    (Fate.LATE, 2),
    (Fate.OVERFLOWING, 2),
    (Fate.UNREADABLE, 2),
)
IN_STACKS = (Fate.CANCELLED_IN_STACK, Fate.OVERFLOWING_IN_STACK, Fate.NO_ROOM_FOR_STACK)
_FINISHED, _CANCELLED = "finished", "cancelled"
# How each may end; a failure is named by the code of its error. Who is cancelled may be faster.
_RIGHT_ENDS: Mapping[Fate, tuple[str, ...]] = MappingProxyType(
    {
        Fate.PLAIN: (_FINISHED,),
        Fate.SAVED: (_FINISHED,),
        Fate.TORN: (_FINISHED,),
        Fate.CANCELLED: (_CANCELLED, _FINISHED),
        Fate.LATE: (DeadlineExceeded.code,),
        Fate.OVERFLOWING: (NonFinite.code,),
        Fate.UNREADABLE: (InvalidCheckpoint.code,),
        Fate.CANCELLED_IN_STACK: (_CANCELLED,),
        Fate.OVERFLOWING_IN_STACK: (NonFinite.code,),
        Fate.NO_ROOM_FOR_STACK: (_FINISHED,),
    }
)


@dataclass
class Tally:
    """What has happened so far.

    ends: requests by what was in store for them and how they ended: `finished`, `cancelled`, or the
    code of what failed. wrong_outputs: finished requests with other bytes than the same request
    alone. in_stacks: stacks of a whole wave, by what befell it in there. stacked_steps: steps of
    finished requests that shared a forward. threads: CPU threads that were in force, by model.
    """

    ends: Counter[tuple[Fate, str]] = field(default_factory=Counter[tuple[Fate, str]])
    wrong_outputs: int = 0
    in_stacks: Counter[Fate] = field(default_factory=Counter[Fate])
    stacked_steps: int = 0
    threads: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def requests(self) -> int:
        """Count of requests that have ended."""
        return self.ends.total()

    @property
    def finished(self) -> int:
        """Count of those that gave an output."""
        return sum(count for (_, end), count in self.ends.items() if end == _FINISHED)

    @property
    def cancelled(self) -> int:
        """Count of those that stopped because they were asked to."""
        return sum(count for (_, end), count in self.ends.items() if end == _CANCELLED)

    @property
    def wrong_ends(self) -> int:
        """Count of those that ended otherwise than they must, whatever was in store for them."""
        return sum(n for (fate, end), n in self.ends.items() if end not in _RIGHT_ENDS[fate])


def end_of(final: FinalEvent) -> str:
    """Return how a request ended, as the tally counts it."""
    match final:
        case Finished():
            return _FINISHED
        case Cancelled():
            return _CANCELLED
        case Failed(error=error):
            return error.code
