"""Turns: priority first, then whoever waited longest; a pure function of the snapshot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime import ReadyRequest, RoundRobin
from ostinato.tasks import RequestId


def ready(name: str, priority: int, arrival: int, last_turn: int) -> ReadyRequest:
    return ReadyRequest(
        request_id=RequestId(name), priority=priority, arrival=arrival, last_turn=last_turn
    )


def test_the_highest_priority_goes_first() -> None:
    snapshot = (ready("old", 0, 1, -1), ready("urgent", 5, 2, 7))
    assert RoundRobin().choose(snapshot) == "urgent"


def test_a_newcomer_goes_before_those_who_had_a_turn() -> None:
    snapshot = (ready("a", 0, 1, 3), ready("b", 0, 2, 2), ready("new", 0, 3, -1))
    assert RoundRobin().choose(snapshot) == "new"


@given(count=st.integers(2, 7), rounds=st.integers(1, 4))
def test_equals_take_turns(count: int, rounds: int) -> None:
    last = dict.fromkeys(range(count), -1)
    chosen = []
    for tick in range(count * rounds):
        snapshot = tuple(ready(str(i), 0, i, last[i]) for i in range(count))
        who = int(RoundRobin().choose(snapshot))
        last[who] = tick
        chosen.append(who)
    assert chosen == list(range(count)) * rounds
