"""Does scheduling steps pay? Stored traces on real engines, against one request after the other.

Each trace is replayed in real time by the baseline and by the policy on trial, in one process on
one set of weights. Every output is compared with the same request alone, and each run stands
beside the trace's offline optimum and beside what the simulator says of that very run.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ostinato.bench._arguments import BenchArguments
from ostinato.bench._schedule_figures import Outcome, Ran, figures_of, interval
from ostinato.bench._schedule_profile import profiles_of, run_stacks
from ostinato.bench._schedule_record import run_record
from ostinato.bench._schedule_replay import (
    Bed,
    Replayed,
    run_alone,
    run_clips,
    run_trace,
    sum_of,
)
from ostinato.bench._threads import threads_for, torch_threads
from ostinato.bench.alternate import no_collection
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
        "makespan_ratio_large": (Comparison.AT_MOST, 1.03),
        "throughput_ratio_small": (Comparison.AT_LEAST, 1.5),
        "deadline_hit_rate": (Comparison.AT_LEAST, 0.99),
        "jain_index": (Comparison.AT_LEAST, 0.95),
        "outputs_equal": (Comparison.AT_LEAST, 1),
        "failed_requests": (Comparison.AT_MOST, 0),
        "makespan_error_most": (Comparison.AT_MOST, 0.10),
        "p95_error_most": (Comparison.AT_MOST, 0.10),
    }
)
SIZES = WanSizes(num_layers=2, num_attention_heads=2, ffn_dim=256, text_dim=32)
NUM_CLIPS = 8
SMALL_WAN = "small-wan"  # as the stored traces call it


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trace, and the policy on trial.

    rounds: of baseline and trial in turns; six or more where a ratio of them has a target.
    quick_arrivals: how many of the trace's a quick run replays, in one round. clips: whether the
    trial is also run as a user would run it, with frames and guidance.
    """

    trace: str
    policy: Policy
    max_batch: int
    rounds: int
    quick_arrivals: int
    clips: bool = False


CASES = (
    Case(trace="short-behind-long", policy=FairShare(), max_batch=1, rounds=6, quick_arrivals=17),
    Case(trace="bursty-mix", policy=FairShare(), max_batch=4, rounds=2, quick_arrivals=8),
    Case(trace="sessions", policy=Deadline(), max_batch=1, rounds=3, quick_arrivals=12),
    Case(trace="skewed-tenants", policy=FairShare(), max_batch=1, rounds=3, quick_arrivals=40),
    Case(
        trace="small-tokens",
        policy=FairShare(),
        max_batch=4,
        rounds=6,
        quick_arrivals=12,
        clips=True,
    ),
)


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
            "interval_95": {
                "makespan_ratio_large": interval(
                    outcomes["short-behind-long"], "makespan_s", arguments.seed
                ),
                "throughput_ratio_small": interval(
                    outcomes["small-tokens"], "throughput_per_s", arguments.seed
                ),
            },
            "cases": {
                case.trace: {
                    "policy": case.policy.name,
                    "max_batch": case.max_batch,
                    "rounds": 1 if arguments.quick else case.rounds,
                }
                for case in CASES
            },
            "traces": {name: asdict(outcome) for name, outcome in outcomes.items()},
        },
    )


def run_case(case: Case, sources: Mapping[str, ModelSource], *, quick: bool) -> Outcome:
    """Measure what the trace's classes take, then replay it by both policies, in turns.

    What the classes take is measured before, halfway and after, so that all see the same weather.
    """
    trace = load_trace(case.trace)
    # What is asked for does not depend on how long it takes; when it is asked for does.
    estimates = stored_profiles(case.trace)
    if quick:
        trace = _beginning(trace, case.quick_arrivals)
    bed = Bed(trace=trace, sources=sources, costs=CostModel())
    asked, num_rounds = plan_arrivals(trace, estimates), 1 if quick else case.rounds
    alone, stacks = [run_alone(bed, asked)], [run_stacks(bed, case.max_batch)]
    arrivals = plan_arrivals(trace, profiles_of(bed, alone, stacks))
    sides = {"baseline": (FifoRequest(), 1), "trial": (case.policy, case.max_batch)}
    rounds: dict[str, list[Replayed]] = {side: [] for side in sides}
    with no_collection():
        for index in range(num_rounds):
            for side in sides if index % 2 == 0 else reversed(sides):
                policy, max_batch = sides[side]
                gc.collect()
                found = run_trace(
                    bed, arrivals, policy, max_batch=max_batch, alone=alone[0].latents
                )
                rounds[side].append(found)
            if index in (num_rounds // 2, num_rounds - 1):
                gc.collect()
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
        clips=run_clips(bed, arrivals[:NUM_CLIPS], case.policy, max_batch=case.max_batch)
        if case.clips
        else None,
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
        rounds=tuple(runs),
        predicted=run_figures(trace, simulate(trace, known, policy, arrivals=arrivals).run),
        ends=sum_of(each.ends for each in rounds),
    )


def _beginning(trace: Trace, count: int) -> Trace:
    """Return the trace of the first arrivals, and of what they ask for."""
    arrivals = trace.arrivals[:count]
    asked = {arrival.request_class for arrival in arrivals} | {trace.unit_class}
    classes = {name: found for name, found in trace.classes.items() if name in asked}
    return replace(trace, arrivals=arrivals, classes=classes)
