"""A trace of work units and what each took: real requests through the engine, then stacks.

A unit's entries are those by which the runtime prices it. What the trace itself costs falls
between units and is in nobody's time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ostinato.backend.batch_rules import probe_batch_rules
from ostinato.bench._small_wan import PROMPT, write_small_wan
from ostinato.loop.batch import BatchKey, Stackable, batch_key
from ostinato.loop.cost import CallClock, PricedCall, call_key, calls_work, stack_work
from ostinato.loop.observe import Tap, Unit
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import EULER
from ostinato.request import Request
from ostinato.runtime import Engine, ResidentModel
from ostinato.runtime.threads import cpu_turn, kernel_threads
from ostinato.tasks import TaskType
from ostinato.work import ComponentCall, CostKey, WorkPlan, WorkUnitKind

BUILTIN = "builtin"
# Pixels, frames and steps to draw from; several units of each amount of work, and many amounts.
_WAN_SIZES = ((32, 32), (32, 64), (48, 48), (64, 64), (64, 96), (96, 96), (128, 96))
_WAN_FRAMES = (1, 5)
_BUILTIN_FRAMES = (12, 20, 36, 56, 72)
_STACK_ITEMS = (2, 3, 4, 5, 6)
_STACK_ROUNDS = 4
_MAX_STACK_KEYS = 3  # of one model


class Example(NamedTuple):
    """A call that was made, and its resolved inputs."""

    call: ComponentCall
    inputs: Mapping[str, object]


class TracedUnit(NamedTuple):
    """What a unit is priced by, and the seconds that each entry of it took."""

    entries: tuple[PricedCall, ...]
    seconds: tuple[float, ...]


class CostTrace:
    """An observer that collects the units of one model's requests, one request at a time."""

    def __init__(self) -> None:
        """Set `model` before its requests are submitted."""
        self.model: ResidentModel | None = None
        self.units: list[TracedUnit] = []
        self.examples: dict[CostKey, Example] = {}
        self._node = ""
        self._calls: list[ComponentCall] = []
        self._clock = CallClock()
        self._done = 0.0

    def watch(self, unit: Unit) -> CallClock:
        """End the unit before, begin the next."""
        self.end()
        self._node, self._calls = unit.node, []
        self._clock = CallClock(beside=self)
        return self._clock

    def started(self, call: ComponentCall, inputs: Mapping[str, object]) -> Tap | None:
        """Note a call of the unit, and one example of each shape."""
        assert self.model is not None, "set before a request is submitted"
        self._calls.append(call)
        key = call_key(self.model.card.model_id, call)
        self.examples.setdefault(key, Example(call, inputs))
        return None

    def finished(self, call: ComponentCall, outputs: Mapping[str, object]) -> None:
        """Note when the unit's calls were done."""
        self._done = time.perf_counter()

    def end(self) -> None:
        """End the last unit: all that came since its calls is its `advance`."""
        now = time.perf_counter()
        if not self._calls or self.model is None:
            return
        entries = calls_work(
            self._calls,
            self.model.component,
            model_id=self.model.card.model_id,
            node=self._node,
        )
        self.units.append(TracedUnit(entries, (*self._clock.seconds, now - self._done)))
        self._calls = []


class Traces(NamedTuple):
    """Units that ran alone, in the order in which they ran, and stacks of their calls."""

    alone: tuple[TracedUnit, ...]
    stacked: tuple[TracedUnit, ...]


def trace_requests(folder: Path, num_requests: int, seed: int) -> Traces:
    """Serve random requests of a small Wan and of the built-in model in random order."""
    drawn = random.Random(seed)
    trace, small = CostTrace(), open_model(write_small_wan(folder / "small-wan", EULER, seed))
    with Engine(observer=trace) as engine:
        models = [engine.add(small), engine.add(open_model(BUILTIN))]
        for model in models:
            for spec in model.card.components:  # what loading takes is no part of any unit
                model.component(spec.name)
        for index in range(num_requests):
            trace.model = drawn.choice(models)
            engine.submit(_request(trace.model, drawn, index)).result()
            trace.end()
        stacked = [unit for model in models for unit in _stacks(model, trace.examples, drawn)]
    return Traces(tuple(trace.units), tuple(stacked))


def _request(model: ResidentModel, drawn: random.Random, seed: int) -> Request:
    builtin = model.card.model_id == BUILTIN
    height, width = (None, None) if builtin else drawn.choice(_WAN_SIZES)
    return Request(
        model=model.card.model_id,
        task=TaskType.TEXT_TO_VIDEO,
        prompt=PROMPT,
        seed=seed,
        height=height,
        width=width,
        num_frames=drawn.choice(_BUILTIN_FRAMES if builtin else _WAN_FRAMES),
        num_inference_steps=drawn.choice((1, 2, 3)),
        guidance_scale=drawn.choice((1.0, 3.0)),
    )


def _stacks(
    model: ResidentModel, examples: Mapping[CostKey, Example], drawn: random.Random
) -> Iterator[TracedUnit]:
    """Run stacks of calls that were made, several times and in random order.

    Gives none where the processor's batch rules forbid them.
    """
    groups: dict[BatchKey, list[Example]] = {}
    prefix = f"{model.card.model_id}/"
    for key, example in examples.items():
        if key.component.startswith(prefix):
            batch = batch_key(_plan(example.call), model.component)
            if batch is not None:
                groups.setdefault(batch, []).append(example)
    chosen = drawn.sample(list(groups.items()), k=min(_MAX_STACK_KEYS, len(groups)))
    runs = [(k, g, items) for k, g in chosen for items in _STACK_ITEMS] * _STACK_ROUNDS
    drawn.shuffle(runs)
    with cpu_turn(kernel_threads(model.card)), torch.no_grad():
        rules = probe_batch_rules()
        for key, group, items in runs:
            stack = drawn.choices(group, k=items)
            component = model.component(key.component)
            assert isinstance(component, Stackable), "it has a batch key"
            run, inputs = component.op_stacked(key.op, rules), [entry.inputs for entry in stack]
            started = time.perf_counter()
            if run(inputs) is None:
                return
            spent = time.perf_counter() - started
            plans = [_plan(entry.call) for entry in stack]
            entries = stack_work(plans, model.component, model_id=model.card.model_id, node="")
            yield TracedUnit(entries[:1], (spent,))


def _plan(call: ComponentCall) -> WorkPlan:
    return WorkPlan(kind=WorkUnitKind.DIFFUSION_STEP, calls=(call,))
