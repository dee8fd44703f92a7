"""Does scheduling steps pay? Stored traces on real engines, against one request after the other.

Each trace is replayed in real time by the baseline and by the policy on trial, in one process on
one set of weights. Every output is compared with the same request alone, and each run stands
beside the trace's offline optimum and beside what the simulator says of that very run.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ostinato.bench._arguments import BenchArguments
from ostinato.bench._schedule_profile import profiles_of, run_stacks
from ostinato.bench._schedule_record import run_record
from ostinato.bench._schedule_replay import Bed, Replayed, run_alone, run_trace
from ostinato.bench._threads import threads_for, torch_threads
from ostinato.card import ModelSource
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import EULER, WanSizes, write_tiny_wan
from ostinato.report import Comparison, Report, Target, describe_environment
from ostinato.runtime.scheduler import Deadline, FairShare, FifoRequest, Policy
from ostinato.runtime.simulate import (
    Planned,
    Profiles,
    Trace,
    load_trace,
    offline_optimum,
    optimum_figures,
    plan_arrivals,
    run_figures,
    simulate,
    stored_profiles,
)
from ostinato.work import CostModel

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "short_p95_over_alone": (Comparison.AT_MOST, 1.5),
        "makespan_ratio": (Comparison.AT_MOST, 1.03),
        "throughput_ratio": (Comparison.AT_LEAST, 1.5),
        "deadline_hit_rate": (Comparison.AT_LEAST, 0.99),
        "jain_index": (Comparison.AT_LEAST, 0.95),
        "outputs_equal": (Comparison.AT_LEAST, 1),
        "makespan_error_most": (Comparison.AT_MOST, 0.10),
        "p95_error_most": (Comparison.AT_MOST, 0.10),
    }
)
SIZES = WanSizes(num_layers=2, num_attention_heads=2, ffn_dim=256, text_dim=32)
SMALL_WAN = "small-wan"  # as the stored traces call it
ROUNDS = 3  # of baseline and trial in turns; each figure is the median of its rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trace, and the policy on trial. quick_arrivals: how many of them a quick run replays."""

    trace: str
    policy: Policy
    max_batch: int
    quick_arrivals: int


CASES = (
    Case(trace="short-behind-long", policy=FairShare(), max_batch=1, quick_arrivals=17),
    Case(trace="bursty-mix", policy=FairShare(), max_batch=4, quick_arrivals=8),
    Case(trace="sessions", policy=Deadline(), max_batch=1, quick_arrivals=12),
    Case(trace="skewed-tenants", policy=FairShare(), max_batch=1, quick_arrivals=40),
    Case(trace="small-tokens", policy=FairShare(), max_batch=4, quick_arrivals=12),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Runs by one policy: figures, what the simulator said of them, outputs that were not equal."""

    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    wrong_outputs: int

    def error(self, name: str) -> float:
        """Return the relative error of a prediction; infinite where only one side has the figure.

        Where no request of a class finished by either, there is nothing to be wrong about.
        """
        measured, predicted = self.measured.get(name), self.predicted.get(name)
        if measured is None or predicted is None:
            return 0.0 if measured is predicted else math.inf
        return abs(predicted / measured - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The baseline's run, the run on trial, the figures of the offline optimum."""

    unit_class: str
    baseline: Ran
    trial: Ran
    optimum: Mapping[str, float]
    profiles: Profiles


def run(arguments: BenchArguments) -> Report:
    """Replay every trace by both policies; quick replays the first arrivals of each, once.

    Raises BadInput for a thread count that OSTINATO_NUM_THREADS contradicts.
    """
    threads = threads_for(arguments.threads)
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-schedule-") as folder,
        torch_threads(threads),
    ):
        path = write_tiny_wan(Path(folder) / "small", EULER, SIZES, arguments.seed)
        sources = {SMALL_WAN: open_model(path)}
        outcomes = {case.trace: run_case(case, sources, quick=arguments.quick) for case in CASES}
    return Report(
        name="schedule",
        figures=figures_of(outcomes),
        targets=dict(TARGETS),
        environment=describe_environment(threads),
        detail={
            "sizes": asdict(SIZES),
            "rounds": 1 if arguments.quick else ROUNDS,
            "cases": {
                case.trace: {"policy": case.policy.name, "max_batch": case.max_batch}
                for case in CASES
            },
            "traces": {name: asdict(outcome) for name, outcome in outcomes.items()},
        },
    )


def run_case(case: Case, sources: Mapping[str, ModelSource], *, quick: bool) -> Outcome:
    """Measure what the trace's classes take, then replay it by both policies, in turns.

    What the classes take is measured before and after each round, so that all see the same weather.
    """
    trace = load_trace(case.trace)
    # What is asked for does not depend on how long it takes; when it is asked for does.
    estimates = stored_profiles(case.trace)
    if quick:
        trace = _beginning(trace, case.quick_arrivals)
    bed = Bed(trace=trace, sources=sources, costs=CostModel())
    asked = plan_arrivals(trace, estimates)
    alone, stacks = [run_alone(bed, asked)], [run_stacks(bed, case.max_batch)]
    arrivals = plan_arrivals(trace, profiles_of(bed, alone, stacks))
    sides = {"baseline": (FifoRequest(), 1), "trial": (case.policy, case.max_batch)}
    rounds: dict[str, list[Replayed]] = {side: [] for side in sides}
    for _ in range(1 if quick else ROUNDS):
        for side, (policy, max_batch) in sides.items():
            latents = alone[0].latents
            found = run_trace(bed, arrivals, policy, max_batch=max_batch, alone=latents)
            rounds[side].append(found)
        alone.append(run_alone(bed, asked))
        stacks.append(run_stacks(bed, case.max_batch))
    profiles = profiles_of(bed, alone, stacks)
    ran = {
        side: _ran(trace, arrivals, profiles, policy, rounds[side], stacked=max_batch > 1)
        for side, (policy, max_batch) in sides.items()
    }
    return Outcome(
        unit_class=trace.unit_class,
        **ran,
        optimum=optimum_figures(offline_optimum(trace, profiles, arrivals=arrivals)),
        profiles=profiles,
    )


def _ran(
    trace: Trace,
    arrivals: Sequence[Planned],
    profiles: Profiles,
    policy: Policy,
    rounds: Sequence[Replayed],
    *,
    stacked: bool,
) -> Ran:
    """Return the median of each figure over the rounds, and what the simulator says of them."""
    runs = [
        run_figures(trace, run_record(each.recorder, each.planned, profiles, each.started_s))
        for each in rounds
    ]
    known = profiles if stacked else profiles.unstacked()
    return Ran(
        measured={
            name: statistics.median(run[name] for run in runs)
            for name in runs[0]
            if all(name in run for run in runs)
        },
        predicted=run_figures(trace, simulate(trace, known, policy, arrivals=arrivals).run),
        wrong_outputs=sum(each.wrong_outputs for each in rounds),
    )


def figures_of(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Return the figures by name; each run's own figures are in the report's detail."""
    long, tokens = outcomes["short-behind-long"], outcomes["small-tokens"]
    sessions, tenants = outcomes["sessions"], outcomes["skewed-tenants"]
    short, hits = "short_p95_over_alone", "deadline_hit_rate"
    runs = [ran for outcome in outcomes.values() for ran in (outcome.baseline, outcome.trial)]
    found = {
        short: long.trial.measured[short],
        f"baseline_{short}": long.baseline.measured[short],
        f"optimum_{short}": long.optimum[f"optimum_{short}"],
        "makespan_ratio": _ratio(long, "makespan_s"),
        "throughput_ratio": _ratio(tokens, "throughput_per_s"),
        "stacked_items": tokens.trial.measured["mean_items"],
        hits: sessions.trial.measured[hits],
        f"baseline_{hits}": sessions.baseline.measured[hits],
        f"optimum_{hits}": sessions.optimum[f"optimum_{hits}"],
        "jain_index": tenants.trial.measured.get("jain_index", math.nan),
        "baseline_jain_index": tenants.baseline.measured.get("jain_index", math.nan),
        "bursty_p95_ratio": _ratio(outcomes["bursty-mix"], "small_p95_s"),
        "outputs_equal": float(not any(ran.wrong_outputs for ran in runs)),
    }
    for name, outcome in outcomes.items():
        for side, ran in (("baseline", outcome.baseline), ("trial", outcome.trial)):
            prefix = f"{name.replace('-', '_')}_{side}"
            found[f"{prefix}_makespan_error"] = ran.error("makespan_s")
            found[f"{prefix}_p95_error"] = ran.error(f"{outcome.unit_class}_p95_s")
    return found | {
        f"{kind}_error_most": max(
            value for name, value in found.items() if name.endswith(f"_{kind}_error")
        )
        for kind in ("makespan", "p95")
    }


def _ratio(outcome: Outcome, name: str) -> float:
    """Return what a figure is on trial over what it is by the baseline."""
    return outcome.trial.measured[name] / outcome.baseline.measured[name]


def _beginning(trace: Trace, count: int) -> Trace:
    """Return the trace of the first arrivals, and of what they ask for."""
    arrivals = trace.arrivals[:count]
    asked = {arrival.request_class for arrival in arrivals} | {trace.unit_class}
    classes = {name: found for name, found in trace.classes.items() if name in asked}
    return replace(trace, arrivals=arrivals, classes=classes)
