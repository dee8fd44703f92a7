"""The loop contract: the model says what the next step is, the runtime says when and where.

    init(spec, slots, context) -> state
    next(state)                -> WorkPlan | Done      kernel-free: describes the step
    advance(state, result)     -> state                pure torch: guidance, solver step, renoise
    finalize(state)            -> slots written        what the loop leaves behind

A state is an immutable value; `next` and `advance` may be called again on an old state and give
the same answer. What varies by request lives in the state, never on the loop object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from ostinato.card import ComponentSpec, LoopSpec, PrecisionSpec
from ostinato.loop.facts import Footprint
from ostinato.loop.noise import NoiseStream
from ostinato.request import GenerationSpec
from ostinato.work import CacheRef, PageRef, WorkPlan, WorkResult

S = TypeVar("S")


class Slots(Protocol):
    """The values a node may read: only those it declared."""

    def __getitem__(self, name: str, /) -> object: ...


class Ring(Protocol):
    """A request's own pages (ostinato.memory); naming one is pure."""

    def page(self, index: int) -> PageRef: ...


class LayerEntry(Protocol):
    """One layer's new keys (rotated at absolute positions) and values, [B, L, N, D] each."""

    @property
    def key_rotated(self) -> torch.Tensor: ...
    @property
    def value(self) -> torch.Tensor: ...


class Pages(Protocol):
    """Where committed keys and values are kept (ostinato.memory)."""

    def commit(self, target: PageRef, layers: Sequence[LayerEntry]) -> None: ...
    def read(self, ref: CacheRef) -> object: ...


class Component(Protocol):
    """A resident object: named operations from named inputs to named outputs."""

    def op(self, name: str) -> Callable[..., Mapping[str, object]]: ...


class ComponentAdapter(Protocol):
    """How a family makes a component out of a model folder; named on the card by import string."""

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> object:
        """Read what loops plan by, from configuration files alone."""
        ...

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Component:
        """Load the weights, aligned; raises InvalidCheckpoint."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """What the runtime lends a loop at `init`.

    facts: per role of the loop's binding, what the bound component says of itself.
    noise: the request's keyed randomness.
    open_ring: reserve `n` K/V pages that the request's scope frees.
    """

    facts: Mapping[str, object]
    noise: NoiseStream
    open_ring: Callable[[int], Ring]


@dataclass(frozen=True, slots=True)
class Done:
    """The loop has no further step."""


DONE = Done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """A finished piece of a slot, made available before the loop ends."""

    slot: str
    index: int
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """What a loop leaves behind: values by slot name."""

    slots: Mapping[str, object] = field(default_factory=dict[str, object])


class Loop(Protocol[S]):
    """A driven loop. The object is shared by requests and holds only its card's options."""

    def reads(self, spec: GenerationSpec) -> frozenset[str]:
        """Return the slots this request needs, a subset of what the node declares."""
        ...

    def check(self, spec: GenerationSpec, facts: Mapping[str, object]) -> tuple[str, ...]:
        """Return what is wrong with the request for this loop; asked before any weight loads."""
        ...

    def num_steps(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        """Return how many plans the request takes; known before anything is loaded."""
        ...

    def num_pieces(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        """Return how many emissions the request will make; 0 when nothing is ready early."""
        ...

    def footprint(self, spec: GenerationSpec, facts: Mapping[str, object]) -> Footprint:
        """Return what the request will hold at once; known before anything is loaded."""
        ...

    def init(self, spec: GenerationSpec, slots: Slots, context: LoopContext) -> S: ...
    def next(self, state: S) -> WorkPlan | Done: ...
    def advance(self, state: S, result: WorkResult) -> S: ...
    def finalize(self, state: S) -> LoopResult: ...

    def emitted(self, state: S) -> tuple[Emission, ...]:
        """Return what the latest `advance` finished, so that it can be delivered early."""
        ...


class LoopFactory(Protocol):
    """How a loop class is made from its card's spec; raises InvalidCard for bad options."""

    def __call__(self, spec: LoopSpec) -> Loop[object]: ...


def as_tensor(value: object, name: str) -> torch.Tensor:
    """Narrow a slot or output to a tensor; a wrong type is a fault of ours, not of the caller."""
    assert isinstance(value, torch.Tensor), f"{name} is {type(value).__name__}, expected a tensor"
    return value
