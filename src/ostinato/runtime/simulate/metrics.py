"""Figures of a run, simulated or measured alike: latency, makespan, deadlines, fairness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.runtime.simulate.result import Ending, RequestRecord, RunRecord, Service

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds from arrival to end of the requests of one class that finished.

    over_alone: the same over what each takes alone.
    """

    count: int
    mean_s: float
    p50_s: float
    p95_s: float
    p50_over_alone: float
    p95_over_alone: float

    @staticmethod
    def of(latencies_s: Sequence[float], alone_s: Sequence[float]) -> Latency:
        """Sum up latencies; percentiles are interpolated linearly. Needs at least one."""
        seconds = np.asarray(latencies_s, dtype=np.float64)
        ratios = seconds / np.asarray(alone_s, dtype=np.float64)
        return Latency(
            count=len(seconds),
            mean_s=float(seconds.mean()),
            p50_s=float(np.percentile(seconds, 50)),
            p95_s=float(np.percentile(seconds, 95)),
            p50_over_alone=float(np.percentile(ratios, 50)),
            p95_over_alone=float(np.percentile(ratios, 95)),
        )


def latencies(requests: Iterable[RequestRecord]) -> dict[str, Latency]:
    """Return the latency of each class that finished anything."""
    by_class: dict[str, list[RequestRecord]] = defaultdict(list)
    for request in requests:
        if request.ending is Ending.FINISHED:
            by_class[request.request_class].append(request)
    return {
        name: Latency.of([r.latency_s for r in records], [r.alone_s for r in records])
        for name, records in by_class.items()
    }


def deadline_hit_rate(requests: Iterable[RequestRecord]) -> float | None:
    """Return the part of the requests with a deadline that finished by it; None without any."""
    hits = [request.on_time for request in requests if request.deadline_s is not None]
    return sum(hits) / len(hits) if hits else None


def throughput_per_s(run: RunRecord) -> float:
    """Return finished requests a second of makespan."""
    finished = sum(request.ending is Ending.FINISHED for request in run.requests)
    return finished / run.makespan_s if run.makespan_s > 0 else 0.0


def utilization(run: RunRecord) -> float:
    """Return device-seconds that were used over those that there were."""
    used = sum(service.device_s for service in run.services)
    return used / (run.makespan_s * run.num_devices) if run.makespan_s > 0 else 0.0


def backlogged_window(requests: Sequence[RequestRecord]) -> Interval | None:
    """Return the longest interval in which every tenant had a request that was not done.

    Only there are shares to be compared: who asks for less gets less. None when there is no
    such interval, or a single tenant.
    """
    tenants = {request.tenant for request in requests}
    if len(tenants) < 2:
        return None
    edges = [(request.arrived_s, 1, request.tenant) for request in requests]
    edges += [(request.ended_s, -1, request.tenant) for request in requests]
    edges.sort(key=lambda edge: (edge[0], -edge[1]))  # who comes as another leaves leaves no gap
    present = dict.fromkeys(tenants, 0)
    best: Interval | None = None
    opened: float | None = None
    for at, change, tenant in edges:
        present[tenant] += change
        if all(present.values()):
            opened = at if opened is None else opened
        elif opened is not None:
            if at > opened and (best is None or at - opened > best[1] - best[0]):
                best = (opened, at)
            opened = None
    return best


def attained_s(services: Iterable[Service], window: Interval) -> dict[str, float]:
    """Return device-seconds by tenant within a window; what crosses its edge counts in part."""
    found: dict[str, float] = defaultdict(float)
    for service in services:
        inside = min(service.end_s, window[1]) - max(service.start_s, window[0])
        length = service.end_s - service.start_s
        if inside > 0 and length > 0:
            found[service.tenant] += service.device_s * inside / length
    return dict(found)


def jain_index(amounts: Sequence[float]) -> float:
    """Return (sum x)^2 / (n sum x^2): 1 when all are equal, 1 / n when one has everything.

    Source: Jain, Chiu and Hawe, DEC-TR-301 (1984).
    """
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares > 0 else 1.0


def tenant_fairness(run: RunRecord, weights: Mapping[str, float]) -> float | None:
    """Return Jain's index of device-seconds per weight while all tenants had work; None if never.

    weights: 1.0 for a tenant that is not named.
    """
    window = backlogged_window(run.requests)
    if window is None:
        return None
    had = attained_s(run.services, window)
    tenants = sorted({request.tenant for request in run.requests})
    return jain_index([had.get(name, 0.0) / weights.get(name, 1.0) for name in tenants])
