"""Profiles of a trace's classes, measured through the engine itself.

A unit's seconds hold what the engine does between units, so the simulator, which adds nothing, is
told all that a unit takes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from ostinato.bench._schedule_record import Recorder
from ostinato.bench._schedule_replay import WARM_UP, Bed, run_stacked
from ostinato.runtime.simulate import ClassProfile, Planned, Profiles, Stage, TraceClass
from ostinato.tasks import RequestId

_SOURCE = "measured by ostinato bench schedule"
_STACK_STEPS = 30  # of the requests that are stacked to be timed


def measured_profiles(
    bed: Bed,
    recorder: Recorder,
    planned: Mapping[RequestId, Planned],
    *,
    max_batch: int,
) -> Profiles:
    """Return profiles of requests that ran alone, and of stacks of up to `max_batch`."""
    stages = _stages(recorder, planned)
    stacks: dict[str, tuple[float, ...]] = {}
    measured: set[str] = set()
    for name, asked in bed.trace.classes.items():
        key = _stack_key(asked)
        if max_batch > 1 and key not in measured:
            measured.add(key)
            for node, found in _stacked_s(bed, name, max_batch).items():
                alone_s = next(stage.unit_s for stage in stages[name] if stage.name == node)
                stacks[f"{key} {node}"] = (alone_s, *found)
    classes = {
        name: ClassProfile(
            stages=tuple(_with_stack(stage, _stack_key(asked), stacks) for stage in stages[name])
        )
        for name, asked in bed.trace.classes.items()
    }
    profiles = Profiles(source=_SOURCE, classes=classes, stack_s=stacks)
    profiles.validate()
    return profiles


def _stages(
    recorder: Recorder, planned: Mapping[RequestId, Planned]
) -> dict[str, tuple[Stage, ...]]:
    """Return each class's stages: runs of units of one node, their median and their spread."""
    by_request: dict[RequestId, list[tuple[str, float]]] = defaultdict(list)
    for unit, seconds in recorder.spans_s():
        for request_id in unit.request_ids:
            by_request[request_id].append((unit.nodes[0], seconds))
    by_class: dict[str, list[list[tuple[str, list[float]]]]] = defaultdict(list)
    for request_id, asked in planned.items():
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


def _with_stack(stage: Stage, key: str, stacks: Mapping[str, tuple[float, ...]]) -> Stage:
    stack = f"{key} {stage.name}"
    return replace(stage, stack=stack) if stack in stacks else stage


def _stack_key(asked: TraceClass) -> str:
    """Return what requests share a forward by: all but the number of their steps."""
    return repr(replace(asked, num_inference_steps=None))
