"""Run placed units: the part of the device worker that touches kernels, and knows no policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ostinato.backend.batch_rules import (
    BatchRules,
    StackRules,
    ToleranceRules,
    probe_batch_rules,
)
from ostinato.card import ModelCard
from ostinato.errors import InvalidPlan
from ostinato.loop.batch import Share, execute_each, execute_together
from ostinato.runtime.failure import typed
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.stacking import Batching
from ostinato.runtime.threads import cpu_turn, stated_threads

End = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One unit that ran: how each of its requests ends, None for one that goes on.

    start_s, end_s: the process's monotonic clock, loading included. device_s: what it cost, load_s
    what loading before it did; executed_s: of device_s, the calls of a stack. stacked: whether the
    requests shared a forward. refused: they did not, since the rules of batching forbid it.
    """

    ends: tuple[End | None, ...]
    start_s: float
    end_s: float
    device_s: float
    load_s: float
    executed_s: float
    stacked: bool
    refused: bool


class Turns:
    """Runs one unit after the other; exact rules of stacking are measured when first needed."""

    def __init__(self, forced_threads: int | None, batching: Batching = Batching.EXACT) -> None:
        """Take the thread count that overrides what cards say, and what stacks have to keep."""
        self._forced_threads = forced_threads
        self.batching = batching
        self._rules: dict[int, BatchRules] = {}  # by thread count

    def run(self, group: Sequence[RunningRequest], *, stacked: bool) -> Ran:
        """Run the next unit of each request of a group; stacked: all their calls as one forward.

        A group of several requests is always stacked.
        """
        leader, start_s = group[0], time.monotonic()
        before = sum(running.spent.device_s for running in group)
        loaded = sum(running.spent.load_s for running in group)
        executed_s, refused = 0.0, False
        with cpu_turn(stated_threads(self._forced_threads, leader.cpu_threads)) as threads:
            if not stacked:
                ends = [leader.turn(threads)]
            else:
                ends, shares, executed_s = self._together(group, threads)
                stacked = any(share.stacked for share in shares)
                refused = all(_refused(share) for share in shares)
        return Ran(
            ends=tuple(ends),
            start_s=start_s,
            end_s=time.monotonic(),
            device_s=sum(running.spent.device_s for running in group) - before,
            load_s=sum(running.spent.load_s for running in group) - loaded,
            executed_s=executed_s,
            stacked=stacked,
            refused=refused,
        )

    def _together(
        self, group: Sequence[RunningRequest], threads: int
    ) -> tuple[list[End | None], Sequence[Share], float]:
        started, model = time.perf_counter(), group[0].model
        try:
            rules = self._rules_of(model.card, threads)
            # What the probe takes is nobody's device time, and neither is a trial of shapes.
            started, tried_s = time.perf_counter(), rules.trials_s
            plans = [running.plan for running in group]
            shares = execute_together(plans, model.component, model.pages, rules)
            started += rules.trials_s - tried_s
        except InvalidPlan as error:  # unlike plans are no reason for any of them to fail
            each = execute_each([running.plan for running in group], model.component, model.pages)
            shares = tuple(replace(share, stack_error=error) for share in each)
        except BaseException as error:  # theirs, not the worker's: the others go on
            fault = typed(error, f"a stack of {len(group)} requests failed")
            shares = (Share(error=fault),) * len(group)
        executed_s = time.perf_counter() - started
        calls = sum(len(running.plan.calls) for running in group)
        ends = [
            running.share(threads, share, executed_s * len(running.plan.calls) / calls)
            for running, share in zip(group, shares, strict=True)
        ]
        return ends, shares, executed_s

    def _rules_of(self, card: ModelCard, threads: int) -> StackRules:
        if self.batching is Batching.FAST and card.fast_batch_tolerance is not None:
            return ToleranceRules(dtype=getattr(torch, card.precision.weights))
        return self._rules_at(threads)

    def _rules_at(self, threads: int) -> BatchRules:
        if threads not in self._rules:
            self._rules[threads] = probe_batch_rules()
        return self._rules[threads]


def _refused(share: Share) -> bool:
    """Whether a plan ran alone though nothing went wrong: a stack of such is not allowed."""
    return share.error is None and share.stack_error is None and not share.stacked
