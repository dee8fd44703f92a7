"""Work plans: a step described as data, so that it can be batched, sent, stored and re-run.

A plan holds calls that form a DAG. References travel, not tensors: a call's input is a value
from the loop's state, a `CacheRef` to committed pages, or an `OutputOf` another call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, cast

from ostinato.errors import InvalidPlan

PageId = NewType("PageId", int)


class WorkUnitKind(StrEnum):
    """What kind of step a plan is; the cost model and the metrics group by it."""

    DIFFUSION_STEP = "diffusion_step"
    CHUNK_STEP = "chunk_step"
    CACHE_IO = "cache_io"
    ENCODER_CHUNK = "encoder_chunk"
    VAE_TILE = "vae_tile"


class Granularity(StrEnum):
    """How much of another call's output an edge waits for.

    whole: the finished output. layer: entry l of a per-layer output, needed at layer l; an
    executor may satisfy such an edge serially, packed or by exchange.
    """

    WHOLE = "whole"
    LAYER = "layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """One write-once slot: a page at a version. A page that is reused gets a new version."""

    page: PageId
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRef:
    """Committed pages, in the order in which attention reads their keys."""

    pages: tuple[PageRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOf:
    """A named output of another call of the same plan."""

    call: str
    name: str
    granularity: Granularity = Granularity.WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentCall:
    """One operation of one component.

    inputs: by argument name; `CacheRef`, `OutputOf` and tuples that hold them are resolved by the
    executor, anything else (tensors and tuples of tensors, scalars, None) is passed as it is.
    Python scalars are part of the batch and capture key; what varies from step to step is a
    tensor.
    """

    call_id: str
    component: str
    op: str
    inputs: Mapping[str, object]

    def dependencies(self) -> Iterator[OutputOf]:
        """Yield the references to other calls."""
        for value in self.inputs.values():
            for item in (value, *plain_tuple(value)):
                if isinstance(item, OutputOf):
                    yield item


def plain_tuple(value: object) -> tuple[object, ...]:
    """Return a tuple input's items; none for anything else, named tuples of tensors among it."""
    return cast("tuple[object, ...]", value) if type(value) is tuple else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Where the runtime writes a call's new keys and values before `advance`."""

    output: OutputOf
    target: PageRef


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan:
    """One step: calls, and the commits that follow them."""

    kind: WorkUnitKind
    calls: tuple[ComponentCall, ...]
    commits: tuple[Commit, ...] = ()

    def ordered(self) -> tuple[ComponentCall, ...]:
        """Return the calls so that each follows what it needs, as close to declared as can be.

        Calls that are declared in a valid order keep it.
        Raises InvalidPlan for a repeated call id, an unknown reference or a cycle.
        """
        by_id = {call.call_id: call for call in self.calls}
        if len(by_id) != len(self.calls):
            raise InvalidPlan(f"call ids repeat: {[call.call_id for call in self.calls]}")
        for source in (*self._edges(), *(commit.output for commit in self.commits)):
            if source.call not in by_id:
                raise InvalidPlan(f"{source} names an unknown call; valid: {sorted(by_id)}")
        if not any(True for _ in self._edges()):
            return self.calls
        done: dict[str, ComponentCall] = {}
        waiting = dict(by_id)
        while waiting:
            for call in waiting.values():
                if all(source.call in done for source in call.dependencies()):
                    break
            else:
                raise InvalidPlan(f"calls form a cycle, or wait for one: {sorted(waiting)}")
            done[call.call_id] = waiting.pop(call.call_id)
        return tuple(done.values())

    def _edges(self) -> Iterator[OutputOf]:
        return (edge for call in self.calls for edge in call.dependencies())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkResult:
    """What the calls of a plan returned, by call id and output name."""

    outputs: Mapping[str, Mapping[str, object]] = field(
        default_factory=dict[str, Mapping[str, object]]
    )

    def get(self, call: str, name: str) -> object:
        """Return one output; raises InvalidPlan with the valid names."""
        try:
            return self.outputs[call][name]
        except KeyError:
            valid = {c: sorted(o) for c, o in self.outputs.items()}
            raise InvalidPlan(f"no output {name!r} of call {call!r}; valid: {valid}") from None
