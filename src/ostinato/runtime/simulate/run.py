"""The engine's scheduler under a virtual clock: the same ledger, the same decisions, no kernels.

Only what an engine adds is simulated here: requests that arrive, units that take their time, and
ends. Nothing is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ostinato.errors import BadInput
from ostinato.runtime.scheduler import (
    Decision,
    Policy,
    Snapshot,
    decide,
)
from ostinato.runtime.simulate.pool import VirtualPool
from ostinato.runtime.simulate.profile import Profiles
from ostinato.runtime.simulate.result import SimResult
from ostinato.runtime.simulate.trace import Planned, Trace, plan_arrivals
from ostinato.work import UNLIMITED, Resources


def simulate(
    trace: Trace,
    profiles: Profiles,
    policy: Policy,
    *,
    arrivals: Sequence[Planned] | None = None,
    num_devices: int = 1,
    capacity: Resources = UNLIMITED,
) -> SimResult:
    """Run a trace on a pool; raises BadInput for a class without a profile.

    arrivals: of the trace, where they are not to be planned by these profiles.
    """
    pool = VirtualPool(
        plan_arrivals(trace, profiles) if arrivals is None else arrivals,
        profiles,
        partial(decide, policy=policy),
        tenant_weights=trace.tenant_weights,
        seed=trace.seed,
        num_devices=num_devices,
        capacity=capacity,
    )
    return pool.run()


def replay(
    trace: Trace,
    profiles: Profiles,
    decisions: Sequence[Decision],
    *,
    num_devices: int = 1,
    capacity: Resources = UNLIMITED,
) -> SimResult:
    """Run recorded decisions in place of a policy; raises BadInput when they do not fit."""
    recorded = iter(decisions)

    def next_recorded(snapshot: Snapshot) -> Decision:
        decision = next(recorded, None)
        if decision is None or decision.tick != snapshot.tick:
            tick = None if decision is None else decision.tick
            raise BadInput(
                f"tick {snapshot.tick} was recorded as {tick}; give the record of this very run"
            )
        return decision

    pool = VirtualPool(
        plan_arrivals(trace, profiles),
        profiles,
        next_recorded,
        tenant_weights=trace.tenant_weights,
        seed=trace.seed,
        num_devices=num_devices,
        capacity=capacity,
    )
    return pool.run()
