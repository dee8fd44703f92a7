"""Random traces and profiles, and a pool that holds every tick to what the scheduler promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from ostinato.runtime.scheduler import (
    Decision,
    Device,
    Placed,
    Policy,
    Ready,
    Snapshot,
    TenantShare,
    Waiting,
    decide,
)
from ostinato.runtime.simulate import (
    Arrival,
    ClassProfile,
    Profiles,
    SimResult,
    Stage,
    Trace,
    TraceClass,
    plan_arrivals,
)
from ostinato.runtime.simulate.pool import VirtualPool
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources

TENANTS = ("a", "b", "c")
SECONDS = st.sampled_from((0.1, 0.25, 0.7, 1.0, 3.0))
STACKS: dict[str, tuple[float, ...]] = {"pays": (0.7, 0.9, 1.1, 1.3), "dear": (1.0, 1.95)}


def ready(name: str = "r", **changes: object) -> Ready:
    """Return a ready request of one unit of one second."""
    values: dict[str, object] = {
        "tenant": "default",
        "priority": 0,
        "arrival": 0,
        "arrived_s": 0.0,
        "waiting_since_s": 0.0,
        "deadline_s": None,
        "last_turn": -1,
        "unit_s": 1.0,
        "remaining_s": 1.0,
        "attained_s": 0.0,
    }
    return Ready(request_id=RequestId(name), **(values | changes))  # type: ignore[arg-type]


def waiting(name: str = "w", **changes: object) -> Waiting:
    """Return a waiting request that needs nothing."""
    values: dict[str, object] = {
        "tenant": "default",
        "priority": 0,
        "arrival": 0,
        "arrived_s": 0.0,
        "deadline_s": None,
        "need": Resources(),
        "remaining_s": 1.0,
    }
    return Waiting(request_id=RequestId(name), **(values | changes))  # type: ignore[arg-type]


def snapshot(*entries: Ready | Waiting, now: float = 0.0, **changes: object) -> Snapshot:
    """Return a snapshot of a pool of one free device without limits."""
    values: dict[str, object] = {
        "tick": 0,
        "waiting": tuple(entry for entry in entries if isinstance(entry, Waiting)),
        "ready": tuple(entry for entry in entries if isinstance(entry, Ready)),
        "devices": (Device(index=0),),
        "tenants": {e.tenant: TenantShare(weight=1.0, attained_s=0.0) for e in entries},
        "room": UNLIMITED,
        "top_priority": max((0, *(entry.priority for entry in entries))),
    }
    return Snapshot(now=now, **(values | changes))  # type: ignore[arg-type]


def leader(decision: Decision) -> str:
    """Return who runs first."""
    return decision.units[0].request_ids[0]


@st.composite
def profiles(draw: st.DrawFn, *, moves: bool = True) -> Profiles:
    """Draw two classes of up to three stages; memory of up to 4 bytes each."""
    classes: dict[str, ClassProfile] = {}
    for name in ("x", "y"):
        stages: list[Stage] = []
        for index in range(draw(st.integers(1, 3))):
            stack = draw(st.sampled_from((None, "pays", "dear")))
            unit_s = STACKS[stack][0] if stack else draw(SECONDS)
            spread = draw(st.sampled_from(((), (0.5, 1.0, 2.0))))
            count = draw(st.integers(1, 4))
            stages.append(
                Stage(name=f"s{index}", count=count, unit_s=unit_s, stack=stack, spread=spread)
            )
        classes[name] = ClassProfile(
            stages=tuple(stages),
            need=Resources(memory_bytes=draw(st.integers(0, 4))),
            move_s=draw(st.sampled_from((None, 0.05, 2.0))) if moves else None,
        )
    return Profiles(source="drawn", classes=classes, stack_s=STACKS)


@st.composite
def traces(draw: st.DrawFn, *, deadlines: bool = True, priorities: bool = True) -> Trace:
    """Draw up to fourteen arrivals of two classes."""
    arrivals = draw(
        st.lists(
            st.builds(
                Arrival,
                at=st.floats(0, 12, allow_nan=False),
                request_class=st.sampled_from(("x", "y")),
                tenant=st.sampled_from(TENANTS),
                priority=st.integers(0, 2) if priorities else st.just(0),
                deadline=st.none() | st.floats(0.1, 30) if deadlines else st.none(),
            ),
            min_size=1,
            max_size=14,
        )
    )
    return Trace(
        name="drawn",
        seed=draw(st.integers(0, 5)),
        unit_class="x",
        classes={"x": TraceClass(model="m"), "y": TraceClass(model="m")},
        arrivals=tuple(arrivals),
        tenant_weights={"a": 2.0},
    )


@dataclass
class CheckedPool:
    """Runs a trace and asserts at every tick; `ticks` keeps what was seen and said."""

    trace: Trace
    profiles: Profiles
    policy: Policy
    num_devices: int = 1
    capacity: Resources = UNLIMITED
    ticks: list[tuple[Snapshot, Decision]] = field(default_factory=list)

    def run(self) -> SimResult:
        """Run to the end; the room is then what it was."""
        pool = VirtualPool(
            plan_arrivals(self.trace, self.profiles),
            self.profiles,
            self._decide,
            tenant_weights=self.trace.tenant_weights,
            seed=self.trace.seed,
            num_devices=self.num_devices,
            capacity=self.capacity,
        )
        result = pool.run()
        assert pool.ledger.reservations.room == self.capacity
        assert pool.ledger.reservations.held == Resources()
        return result

    def _decide(self, seen: Snapshot) -> Decision:
        decision = decide(seen, self.policy)
        assert decide(seen, self.policy) == decision, "the same snapshot, another decision"
        assert not list(Resources().beyond(seen.room)), "more is reserved than there is"
        self._assert_nothing_twice(seen, decision)
        if not decision.admitted:
            self._assert_work_conserving(seen, decision)
        self.ticks.append((seen, decision))
        return decision

    def _assert_nothing_twice(self, seen: Snapshot, decision: Decision) -> None:
        placed = [name for unit in decision.units for name in unit.request_ids]
        assert len(placed) == len(set(placed))
        assert set(placed) <= {entry.request_id for entry in seen.ready} - set(decision.hopeless)
        assert set(decision.admitted) <= {entry.request_id for entry in seen.waiting}
        free = {device.index for device in seen.devices if device.free_at is None}
        used = [unit.device for unit in decision.units]
        assert len(used) == len(set(used))
        assert set(used) <= free
        entries = {entry.request_id: entry for entry in seen.ready}
        for unit in decision.units:
            assert all(entries[name].device in (None, unit.device) for name in unit.request_ids[1:])

    def _assert_work_conserving(self, seen: Snapshot, decision: Decision) -> None:
        placed = {name for unit in decision.units for name in unit.request_ids}
        used = {unit.device for unit in decision.units}
        idle = [d.index for d in seen.devices if d.free_at is None and d.index not in used]
        for entry in seen.ready:
            if entry.request_id in placed or entry.request_id in decision.hopeless:
                continue
            assert not idle or (entry.device is not None and entry.device not in idle)


def single(*names: str) -> Placed:
    """Return a unit of one second on device 0."""
    return Placed(device=0, request_ids=tuple(map(RequestId, names)), predicted_s=1.0)
