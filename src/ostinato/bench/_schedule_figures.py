"""What the runs of all traces come to: ratios to the baseline, errors of the simulator, ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.bench._schedule_replay import Ends, sum_of
from ostinato.bench.alternate import ratio_of_medians
from ostinato.runtime.simulate import Profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Runs by one policy.

    measured: the median of each figure over the rounds. predicted: what the simulator says of them.
    """

    measured: Mapping[str, float]
    rounds: tuple[Mapping[str, float], ...]
    predicted: Mapping[str, float]
    ends: Ends

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
    """The baseline's runs, those on trial, the figures of the offline optimum.

    clips: of the trial as a user would run it, None where that was not done.
    """

    unit_class: str
    baseline: Ran
    trial: Ran
    clips: Ends | None
    optimum: Mapping[str, float]
    profiles: Profiles


def figures_of(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Return the figures by name; each run's own figures are in the report's detail."""
    long, tokens = outcomes["short-behind-long"], outcomes["small-tokens"]
    sessions, tenants = outcomes["sessions"], outcomes["skewed-tenants"]
    short, hits = "short_p95_over_alone", "deadline_hit_rate"
    ends = sum_of(
        each
        for outcome in outcomes.values()
        for each in (outcome.baseline.ends, outcome.trial.ends, outcome.clips)
        if each is not None
    )
    found = {
        short: long.trial.measured[short],
        f"baseline_{short}": long.baseline.measured[short],
        f"optimum_{short}": long.optimum[f"optimum_{short}"],
        "makespan_ratio_large": _ratio(long, "makespan_s"),
        "throughput_ratio_small": _ratio(tokens, "throughput_per_s"),
        "stacked_items": tokens.trial.measured["mean_items"],
        hits: sessions.trial.measured[hits],
        f"baseline_{hits}": sessions.baseline.measured[hits],
        f"optimum_{hits}": sessions.optimum[f"optimum_{hits}"],
        "jain_index": tenants.trial.measured.get("jain_index", math.nan),
        "baseline_jain_index": tenants.baseline.measured.get("jain_index", math.nan),
        "bursty_p95_ratio": _ratio(outcomes["bursty-mix"], "small_p95_s"),
        "outputs_equal": float(not ends.wrong_outputs),
        "failed_requests": ends.failed,
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


def interval(outcome: Outcome, name: str, seed: int) -> tuple[float, float]:
    """Return the 95 % interval of that ratio."""
    trial, baseline = (
        [each[name] for each in ran.rounds] for ran in (outcome.trial, outcome.baseline)
    )
    found = ratio_of_medians(trial, baseline, seed=seed)
    return (found.low, found.high)
