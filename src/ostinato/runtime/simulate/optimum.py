"""What no scheduler could beat on a trace whose durations are known beforehand.

Each figure says whether it is a bound, and why: a policy that reaches one has nothing left to gain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.runtime.simulate.metrics import Latency
from ostinato.runtime.simulate.profile import ClassProfile, Profiles
from ostinato.runtime.simulate.trace import Planned, Trace, plan_arrivals

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request as the optimum sees it.

    work_s: device-seconds alone. least_s: device-seconds at the best stacking.
    """

    request_class: str
    arrived_s: float
    work_s: float
    least_s: float
    deadline_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The offline optimum of a trace.

    latency: by class, shortest remaining first with preemption at any instant, nothing stacked. On
    one device that is the least mean over all requests (Schrage 1968); percentiles and classes
    are what this schedule gives, a reference and no bound. On several devices it is a reference.
    mean_latency_bound_s: a bound of the mean over all requests on any pool: several devices, and
    stacks, are granted as one device that is faster by both; and no request beats its time alone.
    makespan_bound_s: a bound of the makespan, see `makespan_bound`.
    deadline_hit_rate: earliest deadline first with preemption at any instant, nothing stacked. On
    one device 1.0 is exact (Dertouzos 1974: it meets all deadlines when anything can); less is
    a reference. None when no request has a deadline.
    jain_index: 1.0, a bound, as no index is higher.
    """

    latency: dict[str, Latency]
    mean_latency_bound_s: float
    makespan_bound_s: float
    deadline_hit_rate: float | None
    jain_index: float = 1.0


def offline_optimum(
    trace: Trace,
    profiles: Profiles,
    *,
    arrivals: Sequence[Planned] | None = None,
    num_devices: int = 1,
) -> Optimum:
    """Return the optimum of a trace on a pool; arrivals: see `simulate`."""
    jobs = jobs_of(plan_arrivals(trace, profiles) if arrivals is None else arrivals, profiles)
    ends = _run(jobs, [job.work_s for job in jobs], num_devices, 1.0)
    due = [job for job in jobs if job.deadline_s is not None]
    by_class: dict[str, Latency] = {}
    for name in dict.fromkeys(job.request_class for job in jobs):
        own = [
            (end - job.arrived_s, job.work_s)
            for job, end in zip(jobs, ends, strict=True)
            if job.request_class == name
        ]
        by_class[name] = Latency.of([each[0] for each in own], [each[1] for each in own])
    return Optimum(
        latency=by_class,
        mean_latency_bound_s=_mean_latency_bound(jobs, num_devices),
        makespan_bound_s=makespan_bound(jobs, num_devices),
        deadline_hit_rate=_edf_hit_rate(due, num_devices) if due else None,
    )


def jobs_of(arrivals: Sequence[Planned], profiles: Profiles) -> list[Job]:
    """Return arrivals with what they take, in order of arrival."""
    return [
        Job(
            request_class=planned.request_class,
            arrived_s=planned.arrived_s,
            work_s=profiles.of(planned.request_class).alone_s,
            least_s=_least_s(profiles.of(planned.request_class), profiles),
            deadline_s=planned.deadline_s,
        )
        for planned in arrivals
    ]


def shortest_remaining_ends(
    jobs: Sequence[Job], *, num_devices: int = 1, speed: float = 1.0
) -> list[float]:
    """Return when each job ends if the shortest remaining run, preempted at any instant."""
    return _run(jobs, [job.work_s for job in jobs], num_devices, speed)


def earliest_deadline_ends(jobs: Sequence[Job], *, num_devices: int = 1) -> list[float]:
    """Return when each job ends if the earliest deadlines run, preempted at any instant."""
    deadlines = [math.inf if job.deadline_s is None else job.deadline_s for job in jobs]
    return _run(jobs, deadlines, num_devices, 1.0, dynamic=False)


def makespan_bound(jobs: Sequence[Job], num_devices: int = 1) -> float:
    """Return a lower bound of the makespan, in seconds from the first arrival.

    Whatever comes from an instant on cannot be begun before it, and the pool does at most
    `num_devices` device-seconds a second, each request at its best stacking (a busy period); and
    no request ends sooner than it would alone.
    """
    if not jobs:
        return 0.0
    first = min(job.arrived_s for job in jobs)
    bound, to_come_s = 0.0, 0.0
    for job in sorted(jobs, key=lambda job: -job.arrived_s):
        to_come_s += job.least_s
        bound = max(bound, job.arrived_s + to_come_s / num_devices, job.arrived_s + job.work_s)
    return bound - first


def _mean_latency_bound(jobs: Sequence[Job], num_devices: int) -> float:
    if not jobs:
        return 0.0
    fast = [
        Job(
            request_class=job.request_class,
            arrived_s=job.arrived_s,
            work_s=job.least_s,
            least_s=job.least_s,
            deadline_s=None,
        )
        for job in jobs
    ]
    ends = shortest_remaining_ends(fast, speed=float(num_devices))
    relaxed = sum(end - job.arrived_s for job, end in zip(jobs, ends, strict=True))
    return max(relaxed, sum(job.work_s for job in jobs)) / len(jobs)


def _edf_hit_rate(due: Sequence[Job], num_devices: int) -> float:
    ends = earliest_deadline_ends(due, num_devices=num_devices)
    hits = [
        job.deadline_s is not None and end <= job.deadline_s + _EPSILON
        for job, end in zip(due, ends, strict=True)
    ]
    return sum(hits) / len(hits)


def _least_s(profile: ClassProfile, profiles: Profiles) -> float:
    """Return device-seconds of a request whose every unit rides in the stack that pays best."""
    total = 0.0
    for stage in profile.stages:
        stacked_s = profiles.stacked_s(stage.stack) if stage.stack is not None else ()
        per_item = min((seconds / n for n, seconds in enumerate(stacked_s, 1)), default=math.inf)
        total += stage.count * min(stage.unit_s, stage.items * per_item)
    return total


def _run(
    jobs: Sequence[Job],
    ranks: Sequence[float],
    num_devices: int,
    speed: float,
    *,
    dynamic: bool = True,
) -> list[float]:
    """Run the jobs of least rank at every instant, one a device; returns their ends.

    dynamic: the rank is what remains and falls with it, else it stays as given. Jobs must be in
    order of arrival.
    """
    ends = [0.0] * len(jobs)
    ready: list[tuple[float, int, float]] = []  # rank, job, remaining
    arrived, now = 0, 0.0
    while ready or arrived < len(jobs):
        if not ready:
            now = max(now, jobs[arrived].arrived_s)
        while arrived < len(jobs) and jobs[arrived].arrived_s <= now:
            heapq.heappush(ready, (ranks[arrived], arrived, jobs[arrived].work_s))
            arrived += 1
        running = [heapq.heappop(ready) for _ in range(min(num_devices, len(ready)))]
        until = min(now + remaining / speed for _, _, remaining in running)
        if arrived < len(jobs):
            until = min(until, jobs[arrived].arrived_s)
        for rank, index, remaining in running:
            left = remaining - (until - now) * speed
            if left <= _EPSILON * jobs[index].work_s:
                ends[index] = until
            else:
                heapq.heappush(ready, (left if dynamic else rank, index, left))
        now = until
    return ends
