"""Profiles of a trace's classes, measured through the engine itself.

A unit's seconds hold what the engine does between units, so the simulator, which adds nothing, is
told all that a unit takes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ostinato.bench._schedule_replay import WARM_UP, Alone, Bed, run_stacked
from ostinato.runtime.simulate import ClassProfile, Profiles, Stage, TraceClass
from ostinato.tasks import RequestId

_SOURCE = "measured by ostinato bench schedule"
_STACK_STEPS = 30  # of the requests that are stacked to be timed


Stacks = Mapping[str, tuple[float, ...]]
"""By key and node that stacks, the seconds of 2, 3, ... stacked calls."""


def run_stacks(bed: Bed, max_batch: int) -> Stacks:
    """Measure stacks of up to `max_batch` requests of each class."""
    found: dict[str, tuple[float, ...]] = {}
    for key, name in {_stack_key(asked): name for name, asked in bed.trace.classes.items()}.items():
        if max_batch > 1:
            found |= {f"{key} {node}": s for node, s in _stacked_s(bed, name, max_batch).items()}
    return found


def profiles_of(bed: Bed, alone: Sequence[Alone], stacks: Sequence[Stacks]) -> Profiles:
    """Return profiles of requests that ran alone, and of stacks; each measured once or more."""
    stages = _stages(alone)
    stack_s: dict[str, tuple[float, ...]] = {}
    classes: dict[str, ClassProfile] = {}
    for name, asked in bed.trace.classes.items():
        found: list[Stage] = []
        for stage in stages[name]:
            key = f"{_stack_key(asked)} {stage.name}"
            measured = [each[key] for each in stacks if key in each]
            if measured:
                seconds = tuple(map(statistics.median, zip(*measured, strict=True)))
                stack_s[key] = (stage.unit_s, *seconds)
            found.append(replace(stage, stack=key) if measured else stage)
        classes[name] = ClassProfile(stages=tuple(found))
    profiles = Profiles(source=_SOURCE, classes=classes, stack_s=stack_s)
    profiles.validate()
    return profiles


def _stages(alone: Sequence[Alone]) -> dict[str, tuple[Stage, ...]]:
    """Return each class's stages: runs of units of one node, their median and their spread."""
    by_class: dict[str, list[list[tuple[str, list[float]]]]] = defaultdict(list)
    for each in alone:
        by_request: dict[RequestId, list[tuple[str, float]]] = defaultdict(list)
        for unit, seconds in each.recorder.spans_s():
            for request_id in unit.request_ids:
                by_request[request_id].append((unit.nodes[0], seconds))
        for request_id, asked in each.planned.items():
            runs = [
                (node, [seconds for _, seconds in units])
                for node, units in groupby(by_request[request_id], key=lambda entry: entry[0])
            ]
            by_class[asked.request_class].append(runs)
    return {
        name: tuple(_stage(each) for each in zip(*requests, strict=True))
        for name, requests in by_class.items()
    }


def _stage(runs: tuple[tuple[str, list[float]], ...]) -> Stage:
    """Return a stage from the same stage of many requests."""
    every = [seconds for _, found in runs for seconds in found]
    unit_s = statistics.median(every)
    return Stage(
        name=runs[0][0],
        count=len(runs[0][1]),
        unit_s=unit_s,
        spread=tuple(seconds / unit_s for seconds in every),
    )


def _stacked_s(bed: Bed, name: str, max_batch: int) -> dict[str, tuple[float, ...]]:
    """Return, by node that stacks, the seconds of 2, 3, ... stacked calls."""
    found: dict[str, list[float]] = defaultdict(list)
    for num_requests in range(2, max_batch + 1):
        by_node: dict[str, list[float]] = defaultdict(list)
        for unit, seconds in run_stacked(bed, name, num_requests, _STACK_STEPS).spans_s():
            if unit.items == num_requests and unit.tenants[0] != WARM_UP:
                by_node[unit.nodes[0]].append(seconds)
        for node, seconds in by_node.items():
            found[node].append(statistics.median(seconds))
    return {node: tuple(seconds) for node, seconds in found.items()}


def _stack_key(asked: TraceClass) -> str:
    """Return what requests share a forward by: all but the number of their steps."""
    return repr(replace(asked, num_inference_steps=None))
