"""Traces: who asks for what, and when, as data that fits any machine.

Times are counted in the time that one class takes alone, so a trace asks as much of a fast machine
as of a slow one. A trace of a whole day keeps the parameters of its traffic instead of every
arrival, and counts in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from ostinato.errors import BadInput
from ostinato.request import Request
from ostinato.runtime.scheduler import DEFAULT_TENANT
from ostinato.runtime.simulate.profile import Profiles
from ostinato.tasks import TaskType

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceClass:
    """What the requests of one class ask for: fields of `Request`; None is the card's default.

    model: a name that whoever runs the trace gives a folder or a hub id.
    """

    model: str
    task: str = TaskType.TEXT_TO_VIDEO.value
    height: int | None = None
    width: int | None = None
    num_frames: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request: at, from the start of the trace; deadline, from its arrival."""

    at: float
    request_class: str
    tenant: str = DEFAULT_TENANT
    priority: int = 0
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiurnalTraffic:
    """Poisson arrivals whose rate swings once a day, lowest at the start.

    span_s: length. load: mean share of the pool's device-seconds that is asked for, nothing
    stacked. swing: how far the rate rises above and falls below its mean, as a part of it.
    class_shares, tenant_shares: parts of the device-seconds and of the requests.
    deadline_over_alone: by class, a deadline as a multiple of the class's time alone.
    """

    span_s: float
    num_devices: int
    load: float
    swing: float
    class_shares: dict[str, float]
    tenant_shares: dict[str, float]
    deadline_over_alone: dict[str, float] = field(default_factory=dict[str, float])


class TimeUnit(StrEnum):
    """What the times of a trace count: the time alone of its `unit_class`, or seconds."""

    ALONE = "alone"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace; tenant_weights: parts of the pool, 1.0 for a tenant that is not named."""

    name: str
    seed: int
    unit_class: str
    classes: dict[str, TraceClass]
    time_unit: TimeUnit = TimeUnit.ALONE
    arrivals: tuple[Arrival, ...] = ()
    traffic: DiurnalTraffic | None = None
    tenant_weights: dict[str, float] = field(default_factory=dict[str, float])

    def validate(self) -> None:
        """Raise BadInput that lists every inconsistency."""
        problems = [*_class_problems(self), *_arrival_problems(self)]
        if problems:
            raise BadInput(f"trace {self.name!r}: {'; '.join(problems)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An arrival on the clock of a run: seconds from its start; deadline_s is an instant."""

    index: int
    request_class: str
    tenant: str
    priority: int
    arrived_s: float
    deadline_s: float | None


def plan_arrivals(trace: Trace, profiles: Profiles) -> tuple[Planned, ...]:
    """Return the arrivals in order of time; raises BadInput for a class without a profile."""
    unit_s = unit_seconds(trace, profiles)
    arrivals = trace.arrivals
    if trace.traffic is not None:
        arrivals += tuple(_drawn(trace.traffic, trace.seed, profiles))
    arrivals = tuple(sorted(arrivals, key=lambda arrival: arrival.at))
    return tuple(
        Planned(
            index=index,
            request_class=arrival.request_class,
            tenant=arrival.tenant,
            priority=arrival.priority,
            arrived_s=arrival.at * unit_s,
            deadline_s=None
            if arrival.deadline is None
            else (arrival.at + arrival.deadline) * unit_s,
        )
        for index, arrival in enumerate(arrivals)
    )


def unit_seconds(trace: Trace, profiles: Profiles) -> float:
    """Return the seconds of one unit of the trace's time."""
    for name in trace.classes:
        profiles.of(name)
    return 1.0 if trace.time_unit is TimeUnit.SECONDS else profiles.of(trace.unit_class).alone_s


def request_of(trace: Trace, planned: Planned, *, model: str, prompt: str) -> Request:
    """Return what to submit for an arrival; its seed is the trace's and its own, so both repeat."""
    asked = trace.classes[planned.request_class]
    deadline = planned.deadline_s
    return Request(
        model=model,
        task=asked.task,
        prompt=prompt,
        seed=trace.seed * 1_000_003 + planned.index,
        height=asked.height,
        width=asked.width,
        num_frames=asked.num_frames,
        num_inference_steps=asked.num_inference_steps,
        guidance_scale=asked.guidance_scale,
        priority=planned.priority,
        deadline_s=None if deadline is None else deadline - planned.arrived_s,
    )


def exponential(random: Random, mean: float) -> float:
    """Draw from the exponential distribution; by inversion, so that a seed gives it for good."""
    return -mean * math.log(1.0 - random.random())


def pick(random: Random, shares: dict[str, float]) -> str:
    """Draw a name by its share."""
    drawn = random.random() * sum(shares.values())
    for name, share in shares.items():
        drawn -= share
        if drawn < 0:
            return name
    return next(reversed(shares))


def _drawn(traffic: DiurnalTraffic, seed: int, profiles: Profiles) -> list[Arrival]:
    """Draw each class's arrivals by thinning (Lewis and Shedler 1979)."""
    found: list[Arrival] = []
    total = sum(traffic.class_shares.values())
    for name, share in traffic.class_shares.items():
        random = Random(f"{seed}/{name}")
        alone_s = profiles.of(name).alone_s
        mean_rate = traffic.load * traffic.num_devices * share / total / alone_s
        highest = mean_rate * (1 + traffic.swing)
        over_alone = traffic.deadline_over_alone.get(name)
        deadline = None if over_alone is None else over_alone * alone_s
        at = exponential(random, 1 / highest)
        while at < traffic.span_s:
            rate = mean_rate * (1 - traffic.swing * math.cos(2 * math.pi * at / DAY_S))
            if random.random() * highest < rate:
                tenant = pick(random, traffic.tenant_shares)
                found.append(Arrival(at=at, request_class=name, tenant=tenant, deadline=deadline))
            at += exponential(random, 1 / highest)
    return found


def _class_problems(trace: Trace) -> list[str]:
    asked = {arrival.request_class for arrival in trace.arrivals} | {trace.unit_class}
    if trace.traffic is not None:
        asked |= trace.traffic.class_shares.keys() | trace.traffic.deadline_over_alone.keys()
    unknown = sorted(asked - trace.classes.keys())
    known = ", ".join(trace.classes) or "none"
    return [f"class {name!r} is not described; described are: {known}" for name in unknown]


def _arrival_problems(trace: Trace) -> list[str]:
    problems: list[str] = []
    for index, arrival in enumerate(trace.arrivals):
        if not 0 <= arrival.at < math.inf:
            problems.append(f"arrivals[{index}].at is {arrival.at!r}; expected at least 0")
        if arrival.deadline is not None and not 0 < arrival.deadline < math.inf:
            problems.append(f"arrivals[{index}].deadline is {arrival.deadline!r}; expected above 0")
    for tenant, weight in trace.tenant_weights.items():
        if not 0 < weight < math.inf:
            problems.append(f"the weight of {tenant!r} is {weight!r}; expected above 0")
    if not trace.arrivals and trace.traffic is None:
        problems.append("it has no arrivals and no traffic to draw them from")
    if trace.traffic is not None:
        problems += _traffic_problems(trace, trace.traffic)
    return problems


def _traffic_problems(trace: Trace, traffic: DiurnalTraffic) -> list[str]:
    problems: list[str] = []
    if trace.time_unit is not TimeUnit.SECONDS:
        problems.append("traffic is drawn in seconds; set time_unit to 'seconds'")
    if not 0 <= traffic.swing <= 1:
        problems.append(f"traffic.swing is {traffic.swing!r}; expected 0 to 1")
    if not (0 < traffic.load < math.inf and traffic.num_devices > 0 and traffic.span_s > 0):
        problems.append("traffic.load, num_devices and span_s are to be above 0")
    shares = (*traffic.class_shares.values(), *traffic.tenant_shares.values())
    if not (traffic.class_shares and traffic.tenant_shares and min(shares) > 0):
        problems.append("traffic needs class_shares and tenant_shares, each above 0")
    return problems
