"""Drive a loop under a suite's eyes: each step is kept, each page and slot is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from ostinato.card import LoopSpec
from ostinato.loop.contract import (
    Component,
    Done,
    LayerEntry,
    Loop,
    LoopContext,
    LoopResult,
    Ring,
)
from ostinato.loop.driver import run_plan
from ostinato.loop.noise import NoiseStream
from ostinato.memory import KVPool, KVRing
from ostinato.request import GenerationSpec
from ostinato.work import CacheRef, PageId, PageRef, WorkPlan, WorkResult


class Turn(NamedTuple):
    """One step: the state before it, what it asked for, what came of it, the state after it."""

    before: object
    plan: WorkPlan
    result: WorkResult
    after: object


class WatchedPages:
    """A pool that keeps to the rules of pages and remembers what was asked of it."""

    def __init__(self) -> None:
        self.pool = KVPool()
        self.rings: list[Ring] = []
        self.written: list[PageRef] = []

    def open_ring(self, num_pages: int) -> Ring:
        self.rings.append(self.pool.open_ring(num_pages))
        return self.rings[-1]

    def commit(self, target: PageRef, layers: Sequence[LayerEntry]) -> None:
        assert target not in self.written, f"{target} is written twice"
        self.pool.commit(target, layers)
        self.written.append(target)

    def read(self, ref: CacheRef) -> object:
        unwritten = [page for page in ref.pages if page not in self.written]
        assert unwritten == [], f"{unwritten} are read before they are committed"
        return self.pool.read(ref)


class WatchedSlots:
    """Slots that remember which were read."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return self.values[name]


class DrivenLoop:
    """What a loop suite is given, and how it drives a request."""

    # Any: each loop has a state type of its own, and the suite looks into none.
    factory: ClassVar[Callable[[LoopSpec], Loop[Any]]]
    loop_spec: ClassVar[LoopSpec]
    reads: ClassVar[frozenset[str]]
    writes: ClassVar[frozenset[str]]
    facts: ClassVar[Mapping[str, object]]

    def component(self) -> Component:
        raise NotImplementedError

    def slots(self) -> Mapping[str, object]:
        raise NotImplementedError

    def specs(self) -> tuple[GenerationSpec, ...]:
        raise NotImplementedError

    def refused(self) -> tuple[GenerationSpec, ...]:
        raise NotImplementedError

    def loop(self) -> Loop[object]:
        return type(self).factory(self.loop_spec)

    def begin(
        self, loop: Loop[object], spec: GenerationSpec, pages: WatchedPages | None = None
    ) -> object:
        """Start a request as the runtime does."""
        noise = NoiseStream(seed=spec.seed)
        rings = (pages or WatchedPages()).open_ring
        context = LoopContext(facts=self.facts, noise=noise, open_ring=rings)
        return loop.init(spec, self.slots(), context)

    def turns(
        self,
        loop: Loop[object],
        spec: GenerationSpec,
        pages: WatchedPages | None = None,
        net: Component | None = None,
    ) -> Iterator[Turn]:
        """Drive a request; each step's pages are committed before it is looked at."""
        pages, net = pages or WatchedPages(), net or self.component()
        state = self.begin(loop, spec, pages)
        while not isinstance(plan := loop.next(state), Done):
            result = run_plan(plan, lambda _: net, pages)
            with torch.no_grad():
                after = loop.advance(state, result)
            yield Turn(state, plan, result, after)
            state = after

    def final(self, loop: Loop[object], spec: GenerationSpec) -> LoopResult:
        """Drive to the end."""
        *_, last = self.turns(loop, spec)
        return loop.finalize(last.after)


def page_ids(ring: Ring) -> tuple[PageId, ...]:
    """Return the slots of a ring."""
    assert isinstance(ring, KVRing)
    return ring.page_ids


def pages_read(inputs: object) -> Iterator[PageRef]:
    """Yield the pages that inputs refer to, at any depth."""
    if isinstance(inputs, CacheRef):
        yield from inputs.pages
    elif isinstance(inputs, Mapping):
        for value in inputs.values():
            yield from pages_read(value)
    elif isinstance(inputs, tuple):
        for value in inputs:
            yield from pages_read(value)
