"""What a tenant has had: levels, idle pools, and what is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ostinato.runtime.scheduler import FairShare, Ledger, NextUnit, decide
from ostinato.runtime.scheduler.shares import Shares
from ostinato.tasks import RequestId
from support.traces import waiting

TENANTS = ("a", "b", "c")
JOBS = st.tuples(st.sampled_from(TENANTS), st.integers(1, 40), st.integers(0, 2))
BURSTS = st.lists(st.lists(JOBS, min_size=1, max_size=4), max_size=4)


class _Pool:
    """One device and requests of so many units of one second."""

    def __init__(self) -> None:
        self.ledger = Ledger(weights={"a": 2.0})
        self.now = 0.0
        self._left: dict[RequestId, int] = {}

    def submit(self, tenant: str, num_units: int, priority: int = 0) -> RequestId:
        name = f"r{len(self._left)}"
        self._left[RequestId(name)] = num_units
        arrival = len(self._left)
        self.ledger.submit(
            waiting(name, tenant=tenant, arrival=arrival, arrived_s=self.now, priority=priority)
        )
        return RequestId(name)

    def turn(self) -> RequestId:
        """Run one unit and return whose it was."""
        while True:
            decision = decide(self.ledger.snapshot(self.now), FairShare())
            following = NextUnit(unit_s=1.0, remaining_s=1.0)
            self.ledger.admit(decision, dict.fromkeys(decision.admitted, following))
            if decision.units:
                break
        (unit,) = decision.units
        self.ledger.start(unit, self.now, decision.tick)
        self.now += 1.0
        self.ledger.stop(unit, 1.0)
        (name,) = unit.request_ids
        self._left[name] -= 1
        if self._left[name]:
            self.ledger.proceed(name, following, self.now)
        else:
            self.ledger.leave(name)
        return name

    def burst(self, jobs: Sequence[tuple[str, int, int]]) -> None:
        """Run requests that come together to their end; the pool is idle afterwards."""
        for job in jobs:
            self.submit(*job)
        while self.ledger.has_work:
            self.turn()
        self.now += 5.0

    def wait_of(self, comer: str, other: str, head_start: int) -> float:
        """Return how long one waits that comes while another tenant is served."""
        self.submit(other, 1000)
        for _ in range(head_start):
            self.turn()
        name, came_s = self.submit(comer, 1), self.now
        while self.turn() != name:
            pass
        return self.now - came_s


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(bursts=[[("a", 20, 2), ("b", 1, 0)]], who=["a", "b", "c"], head_start=2)
@given(bursts=BURSTS, who=st.permutations(TENANTS), head_start=st.integers(1, 5))
def test_use_of_an_idle_pool_is_held_against_nobody(
    bursts: list[list[tuple[str, int, int]]], who: list[str], head_start: int
) -> None:
    pool = _Pool()
    for jobs in bursts:
        pool.burst(jobs)
    fresh = _Pool()
    assert pool.wait_of(who[0], who[1], head_start) == fresh.wait_of(who[0], who[1], head_start)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("enter", "leave", "charge")), st.sampled_from(TENANTS)),
        max_size=40,
    )
)
def test_nobody_comes_below_those_who_are_there(steps: list[tuple[str, str]]) -> None:
    shares, level = Shares({"a": 2.0}), 0.0
    for step, tenant in steps:
        before = shares.present
        if step == "enter":
            shares.enter(tenant)
            if tenant not in before:
                assert shares.present[tenant].claim >= level
        elif tenant in before:
            shares.charge(tenant, 1.0) if step == "charge" else shares.leave(tenant)
        least = min((share.claim for share in shares.present.values()), default=level)
        assert least >= level
        level = least


def test_what_a_tenant_had_beside_others_is_remembered_while_they_are_behind() -> None:
    shares = Shares({})
    shares.enter("b")
    shares.enter("a")
    shares.charge("a", 6.0)
    shares.leave("a")
    shares.charge("b", 2.0)
    shares.enter("a")
    assert shares.present["a"].attained_s == 6.0
    shares.leave("a")
    shares.charge("b", 6.0)
    shares.enter("a")
    assert shares.present["a"].attained_s == 8.0


def test_tenants_that_are_gone_are_forgotten() -> None:
    ledger = Ledger()
    for index in range(2000):
        ledger.submit(waiting(f"r{index}", tenant=f"t{index}", arrival=index))
        ledger.leave(RequestId(f"r{index}"))
    assert ledger.snapshot(0.0).tenants == {}
    held = ledger._shares  # pyright: ignore[reportPrivateUsage]
    assert not held._absent  # pyright: ignore[reportPrivateUsage]
    assert not held._leaving  # pyright: ignore[reportPrivateUsage]
