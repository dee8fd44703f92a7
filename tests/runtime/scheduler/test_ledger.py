"""What the scheduler remembers: charges, reservations, presence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import AdmissionInfeasible
from ostinato.runtime.scheduler import Decision, FifoRequest, Ledger, NextUnit, StackTable, decide
from ostinato.runtime.scheduler.admission import Reservations
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources
from support.traces import single, waiting

UNIT = NextUnit(unit_s=1.0, remaining_s=3.0)
A, B = RequestId("a"), RequestId("b")


def _ledger(*names: str, capacity: Resources = UNLIMITED) -> Ledger:
    """Return a ledger that has admitted requests of a tenant each, one compute second apiece."""
    ledger = Ledger(capacity=capacity, weights={"ta": 2.0})
    for index, name in enumerate(names):
        need = Resources(compute_s=3.0)
        ledger.submit(waiting(name, tenant=f"t{name}", arrival=index, need=need))
    decision = decide(ledger.snapshot(0.0), FifoRequest())
    ledger.admit(decision, {name: UNIT for name in decision.admitted})
    return ledger


def test_what_a_unit_took_is_charged_by_items() -> None:
    ledger = Ledger()
    for index, name in enumerate("ab"):
        ledger.submit(waiting(name, tenant=name, arrival=index))
    decision = decide(ledger.snapshot(0.0), FifoRequest())
    ledger.admit(decision, {A: UNIT, B: replace(UNIT, items=3)})
    unit = single("a", "b")
    ledger.start(unit, 0.0, tick=1)
    assert ledger.snapshot(0.5).devices[0].free_at == 1.0
    assert ledger.snapshot(0.5).ready == ()
    ledger.stop(unit, 4.0)
    ledger.proceed(A, replace(UNIT, remaining_s=2.0), 4.0)
    seen = ledger.snapshot(4.0)
    assert {name: share.attained_s for name, share in seen.tenants.items()} == {"a": 1.0, "b": 3.0}
    ledger.leave(B)
    seen = ledger.snapshot(4.0)
    assert set(seen.tenants) == {"a"}
    (entry,) = seen.ready
    assert (entry.attained_s, entry.last_turn, entry.device) == (1.0, 1, 0)
    assert (entry.waiting_since_s, entry.remaining_s) == (4.0, 2.0)
    assert seen.devices[0].free_at is None


def test_who_has_left_is_not_charged() -> None:
    ledger = _ledger("a", "b")
    unit = single("a", "b")
    ledger.start(unit, 0.0, tick=1)
    ledger.leave(A)
    ledger.stop(unit, 2.0)
    ledger.submit(waiting("c", tenant="ta", arrival=2))
    shares = ledger.snapshot(2.0).tenants
    assert (shares["ta"].claim, shares["tb"].attained_s) == (2.0, 2.0)  # level, and no more


def test_compute_is_given_back_as_it_is_spent() -> None:
    capacity = replace(UNLIMITED, compute_s=10.0)
    ledger = _ledger("a", "b", capacity=capacity)
    assert ledger.snapshot(0.0).room.compute_s == 4.0
    ledger.start(single("a"), 0.0, tick=1)
    ledger.stop(single("a"), 1.0)
    ledger.proceed(A, replace(UNIT, remaining_s=1.0), 1.0)
    assert ledger.snapshot(1.0).room.compute_s == 6.0
    ledger.leave(A)
    ledger.leave(B)
    assert ledger.snapshot(1.0).room == capacity


def test_a_tenant_that_comes_back_starts_level() -> None:
    ledger = _ledger("b")
    ledger.start(single("b"), 0.0, tick=1)
    ledger.stop(single("b"), 6.0)
    ledger.submit(waiting("a", tenant="ta", arrival=1))
    assert ledger.snapshot(6.0).tenants["ta"].attained_s == 12.0  # level per weight: 6 x 2


def test_what_can_never_fit_is_refused_with_numbers() -> None:
    ledger = Ledger(capacity=replace(UNLIMITED, memory_bytes=10.0, pages=1.0))
    too_much = waiting(need=Resources(memory_bytes=8.0, pages=2.0), weights=(("m/net", 4.0),))
    with pytest.raises(AdmissionInfeasible, match=r"memory_bytes 12 of 10, pages 2 of 1"):
        ledger.submit(too_much)
    assert not ledger.has_work


def test_a_guess_refuses_nobody_and_takes_the_whole_pool_at_most() -> None:
    ledger = Ledger(capacity=replace(UNLIMITED, compute_s=10.0))
    need = Resources(compute_s=30.0)
    ledger.submit(waiting("a", need=need, unmeasured_s=25.0))
    with pytest.raises(AdmissionInfeasible, match=r"compute_s 15 of 10"):
        ledger.submit(waiting("b", need=need, unmeasured_s=15.0))
    decision = decide(ledger.snapshot(0.0), FifoRequest())
    ledger.admit(decision, {A: UNIT})
    assert decision.admitted == ("a",)
    assert ledger.snapshot(0.0).room.compute_s == 0.0


def test_stacks_are_priced_where_two_could_share() -> None:
    ledger = Ledger()
    for index, name in enumerate("abc"):
        ledger.submit(waiting(name, arrival=index))
    decision = decide(ledger.snapshot(0.0), FifoRequest())
    keys = dict(zip("abc", ("k", "k", "lone"), strict=True))
    ledger.admit(decision, {RequestId(n): replace(UNIT, stack=k) for n, k in keys.items()})
    table = StackTable((1.0, 1.5))
    assert ledger.snapshot(0.0, lambda key: table).stacks == {"k": table}


def test_snapshots_tell_the_highest_priority() -> None:
    ledger = _ledger("a")
    assert ledger.snapshot(0.0).top_priority == 0
    ledger.submit(waiting("w", priority=3, arrival=2))
    assert ledger.snapshot(0.0).top_priority == 3


def test_ticks_are_counted() -> None:
    ledger = Ledger()
    assert ledger.snapshot(0.0).tick == 0
    ledger.admit(Decision(tick=0), {})
    assert ledger.snapshot(0.0).tick == 1


@settings(max_examples=50, deadline=None)
@given(needs=st.lists(st.floats(0, 1), max_size=20), spare=st.floats(0, 1e-12))
def test_room_comes_back_exactly(needs: list[float], spare: float) -> None:
    capacity = replace(UNLIMITED, memory_bytes=sum(needs) + spare)
    reservations = Reservations(capacity)
    for index, need in enumerate(needs):
        reservations.reserve(RequestId(f"r{index}"), Resources(memory_bytes=need))
        assert reservations.room.memory_bytes >= 0
    for index in range(len(needs)):
        reservations.release(RequestId(f"r{index}"))
    assert reservations.room == capacity
    assert reservations.held == Resources()


def test_a_need_beyond_the_room_is_our_own_fault() -> None:
    reservations = Reservations(replace(UNLIMITED, pages=2.0))
    reservations.reserve(A, Resources(pages=1.0))
    with pytest.raises(AssertionError, match="does not fit"):
        reservations.reserve(B, Resources(pages=1.5))


def test_reservations_only_shrink() -> None:
    reservations = Reservations(replace(UNLIMITED, memory_bytes=8.0, compute_s=8.0))
    reservations.reserve(A, Resources(memory_bytes=5.0, compute_s=2.0))
    reservations.shrink(A, Resources(memory_bytes=9.0, compute_s=1.0))
    assert reservations.of(A) == Resources(memory_bytes=5.0, compute_s=1.0)
    reservations.spend(A, 4.0)
    assert reservations.of(A).compute_s == 1.0
    reservations.keep(A, [("m/net", 2.0)])
    assert reservations.room.memory_bytes == 1.0
    reservations.drop("m/net")
    assert reservations.room.memory_bytes == 3.0
