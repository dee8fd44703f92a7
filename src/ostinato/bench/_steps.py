"""The steps of a request through the engine, and the bare calls of the same steps.

A clock notes when the engine comes to each step of one node; one run is recorded, so that the same
component can be called with the same inputs and nothing around it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias, cast

import torch

from ostinato.bench.alternate import no_collection
from ostinato.loop.observe import Unit
from ostinato.program import LoopNode
from ostinato.request import Request
from ostinato.runtime import Engine, ResidentModel
from ostinato.runtime.threads import cpu_turn, kernel_threads
from ostinato.tasks import TaskType
from ostinato.work import ComponentCall

_Inputs: TypeAlias = Mapping[str, object]
_Key = tuple[int, tuple[int, ...], tuple[int, ...], int]


class Recorded(NamedTuple):
    """One call of a step: its resolved inputs, kept as they were, and what it gave."""

    step: int
    component: str
    op: str
    inputs: Mapping[str, object]
    outputs: Mapping[str, object]


class StepClock:
    """An observer that times every step of one node, and the bare calls of it beside it.

    Its own time, a call or two a step, is counted as the engine's.
    """

    def __init__(self) -> None:
        """Set `node` before the first request; `recording` turns on what `recorded` collects.

        bare: runs the calls of a step by its index, bare_first: right before the engine does, or
        else right after. engine_s, bare_s: seconds of each step.
        """
        self.node = ""
        self.num_steps = 0
        self.bare: Callable[[int], None] | None = None
        self.bare_first = True
        self.engine_s: list[float] = []
        self.bare_s: list[float] = []
        self._entered: float | None = None
        self.recorded: list[Recorded] = []
        self.recording = False
        self._inputs: Mapping[str, object] = {}
        self._kept: dict[_Key, tuple[torch.Tensor, torch.Tensor]] = {}

    def watch(self, unit: Unit) -> StepClock | None:
        """Note that a step begins."""
        if unit.node != self.node:
            return None
        index, self.num_steps = self.num_steps, self.num_steps + 1
        if self.bare is not None:
            if self._entered is not None:
                self.engine_s.append(time.perf_counter() - self._entered)
            if self.bare_first or index > 0:
                started = time.perf_counter()
                self.bare(index if self.bare_first else index - 1)
                self.bare_s.append(time.perf_counter() - started)
        self._entered = time.perf_counter()
        return self if self.recording else None

    def rewind(self) -> None:
        """Forget the request that was seen last; the seconds are kept."""
        self.num_steps, self._entered = 0, None

    def started(self, call: ComponentCall, inputs: Mapping[str, object]) -> None:
        """Keep the inputs of a call."""
        self._inputs = {name: self._keep(value) for name, value in inputs.items()}

    def finished(self, call: ComponentCall, outputs: Mapping[str, object]) -> None:
        """Keep the call."""
        step = self.num_steps - 1
        self.recorded.append(Recorded(step, call.component, call.op, self._inputs, outputs))

    def _keep(self, value: object) -> object:
        """Copy what later steps write to, once: inputs that steps share stay shared."""
        if isinstance(value, torch.Tensor):
            key = (value.data_ptr(), tuple(value.shape), value.stride(), value._version)
            # The original is kept too, or its address could become another tensor's.
            return self._kept.setdefault(key, (value, value.clone()))[1]
        if isinstance(value, tuple):
            items = [self._keep(item) for item in cast("tuple[object, ...]", value)]
            # A named tuple takes its fields one by one, which the type of a tuple does not tell.
            kind = cast("Callable[..., object]", type(value))
            return tuple(items) if kind is tuple else kind(*items)
        return value


class SteppedRequest:
    """A request whose steps are timed, through an engine of its own and bare."""

    def __init__(
        self, engine: Engine, clock: StepClock, model: ResidentModel, request: Request
    ) -> None:
        """Serve the request once, recording; the model is then loaded and warm."""
        self._engine, self._clock, self._model, self._request = engine, clock, model, request
        clock.node = _loop_node(model, request)
        clock.recording = True
        self.cpu_threads = engine.submit(request).result().provenance.cpu_threads
        clock.recording = False
        self.num_steps = clock.num_steps
        self._calls = [
            (model.component(call.component).op(call.op), call) for call in clock.recorded
        ]

    def alternate(self, rounds: int) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """Serve the request again and again, the calls of each step alone beside it.

        Returns by request, for the engine and for the bare calls, the seconds of each step; an
        engine's lasts from one start to the next, so the last of a request is left out. What the
        machine does within a tenth of a second falls on both. Whoever comes second finds the
        inputs in the caches, so who comes first is turned round with every request. Garbage is
        collected between requests.
        """
        clock, by_step = self._clock, self._calls_by_step()

        def bare(step: int) -> None:
            for op, inputs in by_step[step]:
                op(**inputs)

        engine_s: list[tuple[float, ...]] = []
        bare_s: list[tuple[float, ...]] = []
        clock.bare = bare
        with no_collection():
            for index in range(rounds):
                gc.collect()
                clock.rewind()
                clock.engine_s, clock.bare_s, clock.bare_first = [], [], index % 2 == 0
                self._engine.submit(self._request).result()
                assert clock.num_steps == self.num_steps, "a request takes the same steps always"
                engine_s.append(tuple(clock.engine_s))
                bare_s.append(tuple(clock.bare_s[: self.num_steps - 1]))
        clock.bare = None
        return tuple(engine_s), tuple(bare_s)

    def _calls_by_step(self) -> Mapping[int, Sequence[tuple[Callable[..., object], _Inputs]]]:
        found: dict[int, list[tuple[Callable[..., object], _Inputs]]] = {}
        for op, call in self._calls:
            found.setdefault(call.step, []).append((op, call.inputs))
        return found

    def outputs_equal(self) -> bool:
        """Whether the bare calls give the bytes that they gave in the engine."""
        with self._turn(), torch.no_grad():
            return all(_equal(op(**call.inputs), call.outputs) for op, call in self._calls)

    def _turn(self) -> AbstractContextManager[int]:
        return cpu_turn(kernel_threads(self._model.card))


def _loop_node(model: ResidentModel, request: Request) -> str:
    """Return the name of the first loop of the program that serves a request."""
    nodes = model.program(TaskType(request.task)).nodes
    return next(node.name for node in nodes if isinstance(node, LoopNode))


def _equal(found: object, expected: object) -> bool:
    if isinstance(expected, torch.Tensor):
        return isinstance(found, torch.Tensor) and torch.equal(found, expected)
    if isinstance(expected, Mapping):
        return isinstance(found, Mapping) and all(_equal(found[k], expected[k]) for k in expected)
    if isinstance(expected, tuple):
        pairs = zip(_items(found), _items(expected), strict=False)
        return len(_items(found)) == len(_items(expected)) and all(_equal(a, b) for a, b in pairs)
    return found == expected


def _items(value: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()
