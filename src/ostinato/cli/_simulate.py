"""`ostinato simulate trace`: run the scheduler on a trace under a virtual clock."""

from __future__ import annotations

import time

from ostinato.cli._arguments import Simulate
from ostinato.cli._eval import report_result
from ostinato.cli._models import table
from ostinato.cli._result import CommandResult
from ostinato.errors import BadInput
from ostinato.report import Report, describe_environment
from ostinato.runtime.scheduler import policy_named
from ostinato.runtime.simulate import (
    load_profiles,
    load_trace,
    offline_optimum,
    optimum_figures,
    run_figures,
    simulate,
    stored_profiles,
    trace_names,
)

SUBJECTS = ("trace",)


def run_simulation(arguments: Simulate) -> CommandResult:
    """Simulate one trace, or list those that ship; raises BadInput."""
    if arguments.subject not in SUBJECTS:
        raise BadInput(f"no simulation of {arguments.subject!r}; expected: {', '.join(SUBJECTS)}")
    if arguments.name is None:
        rows = [(name, f"{len(load_trace(name).classes)} classes") for name in trace_names()]
        document = {"traces": [{"name": name, "summary": summary} for name, summary in rows]}
        return CommandResult(text=table(rows), document=document)
    trace = load_trace(arguments.name)
    profiles = (
        stored_profiles(arguments.name)
        if arguments.profiles is None
        else load_profiles(arguments.profiles)
    )
    if arguments.no_stacking:
        profiles = profiles.unstacked()
    started = time.perf_counter()
    policy = policy_named(arguments.policy)
    result = simulate(trace, profiles, policy, num_devices=arguments.devices)
    simulated_s = time.perf_counter() - started
    optimum = offline_optimum(trace, profiles, num_devices=arguments.devices)
    report = Report(
        name="simulate-trace",
        figures={
            **run_figures(trace, result.run),
            **optimum_figures(optimum),
            "simulation_s": simulated_s,
        },
        targets={},
        environment=describe_environment(threads=1),
        detail={
            "trace": trace.name,
            "policy": policy.name,
            "devices": arguments.devices,
            "profiles": profiles.source,
            "ticks": len(result.decisions),
            "units_by_items": {str(items): n for items, n in result.run.stacked.items()},
        },
    )
    return report_result(report)
