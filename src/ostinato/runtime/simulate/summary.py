"""The figures of a run beside those of the offline optimum, by stable names."""

from __future__ import annotations

from collections import Counter

from ostinato.runtime.simulate.metrics import (
    deadline_hit_rate,
    latencies,
    tenant_fairness,
    throughput_per_s,
    utilization,
)
from ostinato.runtime.simulate.optimum import Optimum
from ostinato.runtime.simulate.result import RunRecord
from ostinato.runtime.simulate.trace import Trace


def run_figures(trace: Trace, run: RunRecord) -> dict[str, float]:
    """Return the figures of a run; what a trace has none of (deadlines, tenants) is left out.

    requests_ENDING counts requests; mean_items is how many calls shared a unit on average.
    """
    endings = Counter(request.ending for request in run.requests)
    figures: dict[str, float] = {f"requests_{ending}": float(n) for ending, n in endings.items()}
    figures["makespan_s"] = run.makespan_s
    figures["throughput_per_s"] = throughput_per_s(run)
    figures["utilization"] = utilization(run)
    units = sum(run.stacked.values())
    if units:
        figures["mean_items"] = sum(items * n for items, n in run.stacked.items()) / units
    for name, latency in latencies(run.requests).items():
        figures[f"{name}_p50_s"] = latency.p50_s
        figures[f"{name}_p95_s"] = latency.p95_s
        figures[f"{name}_p50_over_alone"] = latency.p50_over_alone
        figures[f"{name}_p95_over_alone"] = latency.p95_over_alone
    return figures | _present(
        deadline_hit_rate=deadline_hit_rate(run.requests),
        jain_index=tenant_fairness(run, trace.tenant_weights),
    )


def optimum_figures(optimum: Optimum) -> dict[str, float]:
    """Return the figures of the optimum, each named `optimum_` as the run's is named."""
    figures = {
        "optimum_makespan_s": optimum.makespan_bound_s,
        "optimum_mean_latency_s": optimum.mean_latency_bound_s,
    }
    for name, latency in optimum.latency.items():
        figures[f"optimum_{name}_p95_over_alone"] = latency.p95_over_alone
    return figures | _present(
        optimum_deadline_hit_rate=optimum.deadline_hit_rate, optimum_jain_index=optimum.jain_index
    )


def _present(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}
