"""Whose claim is the greatest, policy by policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostinato.errors import BadInput
from ostinato.runtime.scheduler import (
    AgedPriority,
    Deadline,
    FairShare,
    FifoRequest,
    Policy,
    Ready,
    RoundRobin,
    ShortestRemaining,
    TenantShare,
    decide,
    policies,
    policy_named,
)
from support.traces import leader, ready, snapshot, waiting

FIRST, SECOND = ready("first"), ready("second", arrival=1)


def _first(policy: Policy, *entries: Ready, now: float = 0.0, **changes: object) -> str:
    return leader(decide(snapshot(*entries, now=now, **changes), policy))


def test_fifo_finishes_what_came_first() -> None:
    assert _first(FifoRequest(), SECOND, ready("first", attained_s=9.0, last_turn=3)) == "first"


def test_round_robin_takes_whoever_waits_longest() -> None:
    later = ready("later", waiting_since_s=2.0)
    assert _first(RoundRobin(), later, ready("since", arrival=1, waiting_since_s=1.0)) == "since"
    assert _first(RoundRobin(), FIRST, ready("urgent", arrival=1, priority=1)) == "urgent"


def test_fair_share_goes_by_tenant_then_by_request() -> None:
    tenants = {
        "a": TenantShare(weight=2.0, attained_s=6.0),
        "b": TenantShare(weight=1.0, attained_s=4.0),
    }
    a, b = ready("a", tenant="a"), ready("b", tenant="b", arrival=1)
    assert _first(FairShare(), a, b, tenants=tenants) == "a"  # 3 a weight against 4
    least = ready("least", tenant="a", arrival=2, attained_s=1.0)
    more = ready("more", tenant="a", attained_s=2.0)
    assert _first(FairShare(), more, b, least, tenants=tenants) == "least"


def test_patience_never_costs_another_tenant_its_share() -> None:
    tenants = {
        "a": TenantShare(weight=1.0, attained_s=9.0),
        "b": TenantShare(weight=1.0, attained_s=1.0),
    }
    overdue = ready("overdue", tenant="a")
    fresh = ready("fresh", tenant="b", arrival=1, waiting_since_s=50.0)
    assert _first(FairShare(), overdue, fresh, now=50.0, tenants=tenants) == "fresh"


@pytest.mark.parametrize("policy", [FairShare(), ShortestRemaining(), Deadline()])
def test_whoever_is_overdue_longest_goes_first(policy: Policy) -> None:
    """By when it was due, not by how many of its units it waited: small units do not pass."""
    long = ready("long", attained_s=50.0, remaining_s=90.0, unit_s=1.0)
    short = ready("short", arrival=1, waiting_since_s=100.0, unit_s=0.1, remaining_s=0.1)
    new = ready("new", arrival=2, waiting_since_s=149.0, unit_s=0.1, remaining_s=0.1)
    assert _first(policy, long, short, new, now=150.0) == "long"
    assert _first(policy, long, replace(new, waiting_since_s=9.0), now=10.0) == "new"


def test_priority_outranks_shares_until_waiting_has_raised_the_other() -> None:
    low = ready("low")
    high = ready("high", arrival=1, priority=1, attained_s=5.0)
    assert _first(FairShare(age_s=60.0), low, high, now=59.0) == "high"
    renewed = ready("high", arrival=1, priority=1, attained_s=5.0, waiting_since_s=61.0)
    assert _first(FairShare(age_s=60.0), low, renewed, now=61.0) == "low"


def test_waiting_raises_nobody_above_the_highest() -> None:
    """Else a tenant with many requests, which all wait long, would pass the others' shares."""
    tenants = {
        "many": TenantShare(weight=1.0, attained_s=9.0),
        "few": TenantShare(weight=1.0, attained_s=1.0),
    }
    old = ready("old", tenant="many")
    new = ready("new", tenant="few", arrival=1, waiting_since_s=999.0)
    assert _first(FairShare(), old, new, now=1000.0, tenants=tenants) == "new"


def test_shortest_remaining() -> None:
    assert _first(ShortestRemaining(), ready("long", remaining_s=9.0), SECOND) == "second"


def test_deadlines_go_first_by_the_earliest() -> None:
    soon, late = ready("soon", arrival=2, deadline_s=5.0), ready("late", deadline_s=9.0)
    assert _first(Deadline(), FIRST, late, soon) == "soon"
    overdue = ready("overdue", arrival=3)
    later = ready("later", deadline_s=200.0, waiting_since_s=101.0)
    assert _first(Deadline(patience=100.0), later, overdue, now=101.5) == "overdue"


def test_aged_priority_rises_with_waiting() -> None:
    low, high = ready("low"), ready("high", arrival=1, priority=1, waiting_since_s=50.0)
    assert _first(AgedPriority(age_s=60.0), low, high, now=59.0) == "high"
    assert _first(AgedPriority(age_s=40.0), low, high, now=59.0) == "low"


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (FifoRequest(), ("b", "a")),
        (ShortestRemaining(), ("a", "b")),
        (Deadline(), ("a", "b")),
        (AgedPriority(), ("a", "b")),
        (FairShare(), ("a", "b")),
    ],
)
def test_admission_goes_by_the_policy(policy: Policy, order: tuple[str, ...]) -> None:
    a = waiting("a", arrival=1, priority=1, remaining_s=1.0, deadline_s=9.0)
    b = waiting("b", arrival=0, remaining_s=2.0)
    assert decide(snapshot(b, a), policy).admitted == order


@pytest.mark.parametrize("policy", [ShortestRemaining(patience=5.0), Deadline(patience=5.0)])
def test_admission_is_not_denied_for_ever(policy: Policy) -> None:
    old = waiting("old", remaining_s=10.0)
    new = waiting("new", arrival=1, remaining_s=1.0, deadline_s=90.0, arrived_s=51.0)
    assert decide(snapshot(new, old, now=49.0), policy).admitted == ("new", "old")
    assert decide(snapshot(new, old, now=51.0), policy).admitted == ("old", "new")


def test_policies_have_names() -> None:
    assert {policy_named(policy.name) for policy in policies()} == set(policies())
    assert policies()[0] == FairShare()
    with pytest.raises(BadInput, match="shortest-remaining"):
        policy_named("fastest")


def test_only_deadlines_are_hopeless() -> None:
    lost = ready("lost", deadline_s=1.0, remaining_s=9.0)
    seen = snapshot(lost)
    hopeless = [policy.name for policy in policies() if policy.hopeless(lost, seen)]
    assert hopeless == ["deadline"]


def test_a_guess_gives_up_nobody() -> None:
    late = ready("late", deadline_s=5.0, remaining_s=9.0)
    assert decide(snapshot(late), Deadline()).hopeless == ("late",)
    guessed = replace(late, unmeasured_s=6.0)
    assert decide(snapshot(guessed), Deadline()).hopeless == ()
    assert decide(snapshot(guessed, now=2.5), Deadline()).hopeless == ("late",)
