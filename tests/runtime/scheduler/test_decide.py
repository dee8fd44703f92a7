"""One tick: who is admitted, whose unit is next, where, and in whose company."""

from __future__ import annotations

from dataclasses import replace

from ostinato.runtime.scheduler import (
    Deadline,
    Decision,
    Device,
    FairShare,
    FifoRequest,
    Ledger,
    NextUnit,
    Ready,
    RoundRobin,
    ShortestRemaining,
    StackTable,
    decide,
)
from ostinato.runtime.scheduler.decide import BYPASS_S
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources
from support.traces import leader, ready, snapshot, waiting

BYTES_2 = replace(UNLIMITED, memory_bytes=2.0)


def _need(memory: float) -> Resources:
    return Resources(memory_bytes=memory)


def test_a_tick_that_admits_places_nothing() -> None:
    """The newly admitted may have the greater claim: the next tick knows it."""
    decision = decide(snapshot(ready("r"), waiting("w", arrival=1)), FairShare())
    assert decision.admitted == ("w",)
    assert decision.units == ()
    assert leader(decide(snapshot(ready("r")), FairShare())) == "r"


def test_smaller_ones_pass_what_does_not_fit_but_not_for_ever() -> None:
    large, small = waiting("large", need=_need(3.0)), waiting("small", arrival=1, need=_need(1.0))
    early = decide(snapshot(large, small, room=BYTES_2), FifoRequest())
    assert early.admitted == ("small",)
    late = decide(snapshot(large, small, room=BYTES_2, now=BYPASS_S + 1), FifoRequest())
    assert late.admitted == ()


def test_weights_take_their_room_once() -> None:
    two = [waiting(n, arrival=i, weights=(("m/net", 2.0),)) for i, n in enumerate("ab")]
    assert decide(snapshot(*two, room=BYTES_2), FifoRequest()).admitted == ("a", "b")
    needy = waiting("c", need=_need(1.0), weights=(("m/net", 2.0),))
    assert decide(snapshot(needy, room=BYTES_2), FifoRequest()).admitted == ()
    resident = snapshot(needy, room=BYTES_2, resident=frozenset({"m/net"}))
    assert decide(resident, FifoRequest()).admitted == ("c",)


def test_weights_that_nobody_admitted_needs_give_way() -> None:
    idle = (("old/net", 1.0), ("new/net", 2.0))
    seen = snapshot(
        waiting("w", weights=(("m/net", 3.0),)),
        room=BYTES_2,
        resident=frozenset({"old/net", "new/net", "busy/net"}),
        idle_weights=idle,
    )
    decision = decide(seen, FifoRequest())
    assert (decision.admitted, decision.evicted) == (("w",), ("old/net",))
    vast = replace(seen, waiting=(waiting("w", weights=(("m/net", 6.0),)),))
    assert decide(vast, FifoRequest()) == Decision(tick=0)  # not even so: nothing is given up
    first = waiting("first", need=_need(9.0), weights=(("old/net", 1.0),))
    seen = replace(seen, waiting=(first, replace(seen.waiting[0], arrival=1)))
    assert decide(seen, FifoRequest()).evicted == ("new/net",)  # `first` will need the other


def test_idle_weights_keep_nobody_waiting_beside_steady_traffic() -> None:
    ledger = Ledger(capacity=replace(UNLIMITED, memory_bytes=10.0))
    following = NextUnit(unit_s=1.0, remaining_s=9.0)

    def come(name: str, component: str) -> tuple[str, ...]:
        ledger.submit(waiting(name, arrival=ord(name), weights=((component, 4.0),)))
        decision = decide(ledger.snapshot(0.0), FairShare())
        ledger.admit(decision, dict.fromkeys(decision.admitted, following))
        return decision.admitted

    assert come("a", "C") == ("a",)
    ledger.leave(RequestId("a"))
    assert come("b", "A") == ("b",)
    assert come("c", "B") == ("c",)
    assert ledger.snapshot(0.0).resident == {"A", "B"}
    assert come("d", "D") == ()  # both are in use


def test_hopeless_requests_do_not_run() -> None:
    lost = ready("lost", deadline_s=1.0, remaining_s=5.0)
    decision = decide(snapshot(lost, ready("r")), Deadline())
    assert decision.hopeless == ("lost",)
    assert leader(decision) == "r"
    just = ready("just", deadline_s=4.6, remaining_s=5.0)  # within the margin of a tenth
    assert decide(snapshot(just), Deadline()).hopeless == ()


def test_a_unit_runs_where_its_state_is_unless_moving_beats_waiting() -> None:
    devices = (Device(index=0, free_at=2.0), Device(index=1))
    stays = ready(device=0)
    assert decide(snapshot(stays, devices=devices), FairShare()).units == ()
    slow, quick = replace(stays, move_s=3.0), replace(stays, move_s=0.5)
    assert decide(snapshot(slow, devices=devices), FairShare()).units == ()
    (unit,) = decide(snapshot(quick, devices=devices), FairShare()).units
    assert (unit.device, unit.move_s) == (1, 0.5)
    (home,) = decide(snapshot(replace(quick, device=1), devices=devices), FairShare()).units
    assert (home.device, home.move_s) == (1, 0.0)


PEERS = (ready("a", stack="k"), ready("b", stack="k", arrival=1))


def test_peers_share_a_forward_when_it_takes_less_than_its_parts() -> None:
    (unit,) = decide(snapshot(*PEERS, stacks={"k": StackTable((1.0, 1.9))}), RoundRobin()).units
    assert unit.request_ids == ("a", "b")
    assert unit.predicted_s == 1.9
    (alone,) = decide(snapshot(*PEERS, stacks={"k": StackTable((1.0, 2.0))}), RoundRobin()).units
    assert alone.request_ids == ("a",)
    (full,) = decide(snapshot(*PEERS, stacks={"k": StackTable((1.0,))}), RoundRobin()).units
    assert full.request_ids == ("a",)


def test_as_many_share_a_forward_as_save_most() -> None:
    """A third one costs more than it saves, a fourth makes up for it."""
    four = [ready(name, stack="k", arrival=index) for index, name in enumerate("abcd")]
    table = StackTable((1.0, 1.2, 2.9, 3.0))
    (unit,) = decide(snapshot(*four, stacks={"k": table}), RoundRobin()).units
    assert (unit.request_ids, unit.predicted_s) == (("a", "b", "c", "d"), 3.0)
    (pair,) = decide(snapshot(*four[:3], stacks={"k": table}), RoundRobin()).units
    assert (pair.request_ids, pair.predicted_s) == (("a", "b"), 1.2)


def test_a_lesser_claim_may_lengthen_a_stack_only_a_little() -> None:
    """Under shortest-remaining the first would go on alone, so its company has to be cheap."""
    long = ready("b", stack="k", arrival=1, remaining_s=9.0)
    policy = ShortestRemaining()
    (dear,) = decide(snapshot(PEERS[0], long, stacks={"k": StackTable((1.0, 1.5))}), policy).units
    assert dear.request_ids == ("a",)
    (cheap,) = decide(snapshot(PEERS[0], long, stacks={"k": StackTable((1.0, 1.3))}), policy).units
    assert cheap.request_ids == ("a", "b")


def test_a_short_request_is_not_slowed_by_a_long_one_under_way() -> None:
    long = ready("long", stack="k", attained_s=20.0, remaining_s=20.0, device=0)
    short = ready("short", stack="k", arrival=1, remaining_s=4.0)
    (unit,) = decide(snapshot(long, short, stacks={"k": StackTable((1.0, 1.9))}), FairShare()).units
    assert unit.request_ids == ("short",)


def test_company_keeps_deadlines_and_devices() -> None:
    tight = ready("t", stack="k", deadline_s=1.2)
    (unit,) = decide(
        snapshot(tight, PEERS[1], stacks={"k": StackTable((1.0, 1.5))}), RoundRobin()
    ).units
    assert unit.request_ids == ("t",)
    elsewhere = ready("e", stack="k", arrival=1, device=1)
    devices = (Device(index=0), Device(index=1, free_at=9.0))
    seen = snapshot(PEERS[0], elsewhere, stacks={"k": StackTable((1.0, 1.1))}, devices=devices)
    assert decide(seen, RoundRobin()).units[0].request_ids == ("a",)


def test_what_could_run_on_a_free_device_does_not_share_one() -> None:
    devices = (Device(index=0), Device(index=1))
    units = decide(
        snapshot(*PEERS, stacks={"k": StackTable((1.0, 1.1))}, devices=devices), RoundRobin()
    ).units
    assert [unit.request_ids for unit in units] == [("a",), ("b",)]


def test_a_size_that_is_tried_has_room_for_anyone_but_threatens_no_deadline() -> None:
    dear = StackTable((1.0, 5.0, 9.0), trial=2)
    long = ready("b", stack="k", arrival=1, remaining_s=9.0)
    third = ready("c", stack="k", arrival=2)
    (unit,) = decide(snapshot(PEERS[0], long, third, stacks={"k": dear}), RoundRobin()).units
    assert (unit.request_ids, unit.predicted_s) == (("a", "b"), 5.0)
    (known,) = decide(
        snapshot(PEERS[0], long, stacks={"k": dear._replace(trial=0)}), RoundRobin()
    ).units
    assert known.request_ids == ("a",)
    # The price says 0.1 s more, which would do; its parts would not.
    guessed = StackTable((1.0, 1.1), trial=2)
    tight = replace(PEERS[0], deadline_s=1.5)
    (alone,) = decide(snapshot(tight, long, stacks={"k": guessed}), RoundRobin()).units
    assert alone.request_ids == ("a",)
    loose = replace(PEERS[0], deadline_s=2.0)
    (both,) = decide(snapshot(loose, long, stacks={"k": guessed}), RoundRobin()).units
    assert both.request_ids == ("a", "b")


def test_items_of_a_unit_count_in_its_stack() -> None:
    pairs = [replace(entry, items=2, unit_s=1.2) for entry in PEERS]
    table = (1.0, 1.2, 1.4, 1.6)
    (unit,) = decide(snapshot(*pairs, stacks={"k": StackTable(table)}), RoundRobin()).units
    assert (unit.request_ids, unit.predicted_s) == (("a", "b"), 1.6)
    (alone,) = decide(snapshot(*pairs, stacks={"k": StackTable(table[:3])}), RoundRobin()).units
    assert (alone.request_ids, alone.predicted_s) == (("a",), 1.2)


def test_branches_of_one_request_are_one_forward_where_that_is_cheaper() -> None:
    pair = ready("a", stack="k", items=2, unit_s=2.1)

    def unit(table: StackTable) -> tuple[bool, float]:
        (found,) = decide(snapshot(pair, stacks={"k": table}), RoundRobin()).units
        return found.stacked, found.predicted_s

    assert unit(StackTable((1.0, 1.5))) == (True, 1.5)
    assert unit(StackTable((1.0, 2.5))) == (False, 2.1)
    assert unit(StackTable((1.0, 2.5), trial=2)) == (True, 2.5)
    assert unit(StackTable((1.0,))) == (False, 2.1)
    assert unit(StackTable()) == (False, 2.1)
    single = replace(pair, items=1, unit_s=1.0)
    (lone,) = decide(snapshot(single, stacks={"k": StackTable((1.0, 1.1), 2)}), RoundRobin()).units
    assert not lone.stacked


def test_a_pair_gives_up_its_own_stack_only_for_company_that_saves_more() -> None:
    pair, other = ready("a", stack="k", items=2), ready("b", stack="k", arrival=1)
    dear, cheap = StackTable((1.0, 1.2, 2.5)), StackTable((1.0, 1.2, 1.5))
    (unit,) = decide(snapshot(pair, other, stacks={"k": dear}), RoundRobin()).units
    assert (unit.request_ids, unit.predicted_s) == (("a",), 1.2)
    (both,) = decide(snapshot(pair, other, stacks={"k": cheap}), RoundRobin()).units
    assert (both.request_ids, both.predicted_s) == (("a", "b"), 1.5)


def test_a_stack_pushes_nobody_past_a_deadline() -> None:
    """Who waits beside it waits for all of the stack."""
    lead = ready("lead", stack="k", deadline_s=1.6)
    others = [ready(f"o{i}", stack="k", arrival=i, remaining_s=9.0) for i in range(2, 5)]
    table = StackTable((1.0, 1.1, 1.2, 1.5))

    def group(*third: Ready) -> int:
        seen = snapshot(lead, *third, *others, stacks={"k": table})
        return len(decide(seen, Deadline()).units[0].request_ids)

    assert group() == 4
    assert group(ready("third", arrival=1, deadline_s=2.25)) == 3
    assert group(ready("third", arrival=1, deadline_s=2.0)) == 1  # in time only as the very next
    assert group(ready("third", arrival=1, deadline_s=1.9)) == 4  # late in any case
    chain = [ready(f"c{i}", arrival=1, deadline_s=s) for i, s in enumerate((2.9, 3.15))]
    assert group(*chain) == 2
    assert group(ready("third", arrival=1, deadline_s=2.25, stack="k")) == 4  # it joins
    lead = replace(lead, remaining_s=3.0, deadline_s=3.6)
    assert group(ready("third", arrival=1, deadline_s=4.25)) == 3  # behind all of the leader's


def test_a_trial_of_own_calls_pushes_nobody_past_a_deadline() -> None:
    pair = ready("pair", stack="k", items=2, unit_s=2.0, remaining_s=2.0, deadline_s=4.0)
    dear = StackTable((1.0, 2.5), trial=2)

    def stacked(*entries: Ready) -> bool:
        return decide(snapshot(*entries, stacks={"k": dear}), Deadline()).units[0].stacked

    assert stacked(pair)
    assert not stacked(replace(pair, deadline_s=2.2))
    assert stacked(pair, ready("third", arrival=1, deadline_s=4.5))
    assert not stacked(replace(pair, deadline_s=3.0), ready("third", arrival=1, deadline_s=3.2))
