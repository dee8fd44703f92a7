"""Several witnesses: each is told everything, and one that raises leaves alone."""

from __future__ import annotations

import warnings

import pytest

from ostinato.runtime.scheduler import Decision, Level, Outcome, Snapshot, UnitRecord, Waiting
from ostinato.runtime.witness import Bystander, Witnesses
from ostinato.tasks import RequestId
from support.feed import Feed, mixed


class Counting(Bystander):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def submitted(self, waiting: Waiting, model: str) -> None:
        self.told.append(f"submitted {waiting.request_id} {model}")

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        self.told.append(f"decided {snapshot.tick} {decision.tick}")

    def executed(self, unit: UnitRecord) -> None:
        self.told.append(f"executed {unit.tick}")

    def ended(self, request_id: RequestId, outcome: Outcome, now: float) -> None:
        self.told.append(f"ended {request_id} {outcome} {now}")

    def level(self, level: Level) -> None:
        self.told.append(f"level {level.waiting}")


class Raising(Bystander):
    """Raises at the second unit."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.seen = error, 0

    def executed(self, unit: UnitRecord) -> None:
        self.seen += 1
        if self.seen == 2:
            raise self.error


def test_each_is_told_what_one_alone_is_told() -> None:
    alone, first, second = Counting(), Counting(), Counting()
    Feed(alone, mixed()).play()
    Feed(Witnesses(first, Bystander(), second), mixed()).play()
    assert first.told == second.told == alone.told
    assert {line.split()[0] for line in alone.told} == {
        "submitted",
        "decided",
        "executed",
        "ended",
        "level",
    }


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit("no"), KeyboardInterrupt("no")])
def test_one_that_raises_is_dropped_and_the_others_go_on(error: BaseException) -> None:
    raising, other = Raising(error), Counting()
    witnesses = Witnesses(raising, other)
    name = type(error).__name__
    with pytest.warns(RuntimeWarning, match=f"Raising raised {name}: no; it is told no more"):
        feed = Feed(witnesses, mixed()).play()
    assert raising.seen == 2
    assert witnesses.present == (other,)
    assert sum(line.startswith("executed") for line in other.told) == len(feed.units)
    assert len(feed.ends) == len(mixed())


def test_where_warnings_are_errors_nobody_is_harmed_either() -> None:
    witnesses = Witnesses(Raising(ValueError("no")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed = Feed(witnesses, mixed()).play()
    assert len(feed.ends) == len(mixed())
    assert witnesses.present == ()


def test_the_same_witness_twice_leaves_as_one() -> None:
    raising = Raising(ValueError("no"))
    witnesses = Witnesses(raising, raising)
    with pytest.warns(RuntimeWarning, match="Raising"):
        Feed(witnesses, mixed()).play()
    assert witnesses.present == ()
