"""One served model under a suite's eyes: what each request gives alone, and every call it makes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from conformance.values import leaves
from ostinato.card import ModelSource
from ostinato.loop.contract import Component, Done, LoopContext
from ostinato.loop.driver import run_plan
from ostinato.loop.noise import NoiseStream
from ostinato.media import Video
from ostinato.memory import KVPool
from ostinato.program import Node, ProgramRun
from ostinato.request import Event, GenerationSpec, Progress, Request
from ostinato.runtime import Engine, Output, ResidentModel, Stacking
from ostinato.runtime.resolve import resolve
from ostinato.runtime.scheduler import Policy
from ostinato.tasks import RequestId
from ostinato.work import WorkPlan

TIMEOUT_S = 60.0


class Call(NamedTuple):
    """One executed operation: the texts among its inputs and the arithmetic it took."""

    component: str
    op: str
    texts: tuple[str, ...]
    flops: int


class Step(NamedTuple):
    """One plan of a request, before it is executed, and the pages it may read."""

    node: Node
    plan: WorkPlan
    pages: KVPool


class Record(NamedTuple):
    """What a request gave in an engine that never served another."""

    output: Output
    events: tuple[Event, ...]
    loaded: tuple[str, ...]

    @property
    def progress(self) -> list[Progress]:
        """The events of finished steps."""
        return [event for event in self.events if isinstance(event, Progress)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An engine with one model; requests contrast in steps, guidance, sizes, prompt and seed."""

    engine: Engine
    resident: ResidentModel
    source: ModelSource
    requests: tuple[Request, ...]
    records: dict[int, Record] = dataclasses.field(default_factory=dict)
    plans: dict[int, tuple[Step, ...]] = dataclasses.field(default_factory=dict)

    def run(self, request: Request) -> Output:
        """Serve one request with nothing beside it."""
        return self.engine.submit(request).result(TIMEOUT_S)

    def record(self, index: int) -> Record:
        """Run a request in a fresh engine; the first time only."""
        if index not in self.records:
            self.records[index] = record(self.source, self.requests[index])
        return self.records[index]

    def alone(self, index: int) -> Output:
        """Return what a request gives alone."""
        return self.record(index).output

    def walked(self, index: int) -> tuple[Step, ...]:
        """Return a request's plans, in order, as the program describes them."""
        if index not in self.plans:
            self.plans[index] = tuple(steps(self.resident, self.spec(self.requests[index])))
        return self.plans[index]

    def spec(self, request: Request) -> GenerationSpec:
        """Fill a request's defaults in."""
        return resolve(self.source.card, request, RequestId("r"))


def record(source: ModelSource, request: Request) -> Record:
    """Run a request in an engine of its own."""
    with serving(source, ()) as fresh:
        handle = fresh.engine.submit(request)
        events = tuple(handle.events(TIMEOUT_S))
        return Record(handle.result(), events, fresh.resident.loaded)


@contextlib.contextmanager
def serving(
    source: ModelSource,
    requests: tuple[Request, ...],
    turns: Policy | None = None,
    *,
    max_batch: int = 1,
) -> Iterator[Served]:
    """Serve a model on an engine of its own."""
    with Engine(turns, max_batch=max_batch, stacking=Stacking.ALWAYS) as engine:
        resident = engine.add(source)
        yield Served(engine=engine, resident=resident, source=source, requests=requests)


def selected(resident: ResidentModel, spec: GenerationSpec) -> tuple[Node, ...]:
    """Return the nodes that a request runs."""
    program = resident.program(spec.task)
    return program.select(spec.outputs, lambda node: resident.loop(node.loop).reads(spec))


def steps(resident: ResidentModel, spec: GenerationSpec) -> Iterator[Step]:
    """Drive a request without an engine; each plan is executed after it was looked at."""
    nodes, pool = selected(resident, spec), KVPool()

    def context(loop: str) -> LoopContext:
        noise = NoiseStream(seed=spec.seed)
        facts = resident.loop_facts(loop)
        return LoopContext(facts=facts, noise=noise, open_ring=pool.open_ring)

    run = ProgramRun(spec, nodes, resident.loop, context)
    by_name = {node.name: node for node in nodes}
    state = run.enter(run.init())
    while not isinstance(plan := run.next(state), Done):
        yield Step(by_name[run.node_name(state)], plan, pool)
        with torch.no_grad():
            state = run.advance(state, run_plan(plan, resident.component, pool))
        state = run.enter(state)


class _Spy:
    """Stands before a component and tells of each call; everything else is the component's."""

    def __init__(
        self, name: str, component: Component, tell: Callable[[Call], None], *, counting: bool
    ) -> None:
        self._name, self._component = name, component
        self._tell, self._counting = tell, counting

    def __getattr__(self, name: str) -> object:
        return getattr(self._component, name)

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        operation = self._component.op(name)

        def spied(**inputs: object) -> Mapping[str, object]:
            flops, texts = 0, tuple(x for _, x in leaves(inputs) if isinstance(x, str))
            if self._counting:
                with FlopCounterMode(display=False) as counter:
                    outputs = operation(**inputs)
                flops = counter.get_total_flops()
            else:
                outputs = operation(**inputs)
            self._tell(Call(self._name, name, texts, flops))
            return outputs

        return spied


@contextlib.contextmanager
def spied(
    resident: ResidentModel, tell: Callable[[Call], None], *, counting: bool = False
) -> Iterator[None]:
    """Tell of every call that the engine makes while the context is open, on its own thread."""
    own = resident._components
    for spec in resident.card.components:
        resident.component(spec.name)
    spies = {name: _Spy(name, c, tell, counting=counting) for name, c in own.items()}
    resident._components = spies  # type: ignore[assignment]
    try:
        yield
    finally:
        resident._components = own


def same_output(one: Output, other: Output) -> bool:
    """Tell whether two outputs have the same names and the same bytes."""
    if list(one.values) != list(other.values):
        return False
    return all(same_value(one.values[name], other.values[name]) for name in one.values)


def same_value(one: object, other: object) -> bool:
    """Tell whether two clips or two tensors are equal to the bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    assert isinstance(one, Video), type(one)
    assert isinstance(other, Video), type(other)
    return one.fps == other.fps and np.array_equal(one.frames, other.frames)
