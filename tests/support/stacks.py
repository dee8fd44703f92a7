"""Something that happens to one request in one of its denoising calls, within a stack or alone.

Calls are told apart by a mark on the latents that they carry: a stack is handed nothing else. The
real ops run, so requests that were picked out still share forwards with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import pytest

from ostinato.backend.batch_rules import BatchRules
from ostinato.loop.contract import Component
from ostinato.program import ProgramRun, ProgramState
from ostinato.runtime import ResidentModel
from ostinato.work import WorkPlan
from support.faults import Act, Inputs, Op

DENOISER = "transformer"
Outputs = Mapping[str, object]
Stack = Callable[[Sequence[Inputs]], Sequence[Outputs] | None]


class Mark(NamedTuple):
    """Whose call it is, and which of its denoising plans it belongs to, counted from 0."""

    request_id: str
    plan: int


@dataclass
class Stacks:
    """What happens to whom at which plan, and who shared forwards.

    acts: happen in a stack as well as alone. broken: at these a stack fails, though each of its
    calls runs alone. formed: the requests of each stack that ran, more than one. hit: requests to
    whom something happened within one.
    """

    acts: dict[Mark, Act] = field(default_factory=dict)
    broken: set[Mark] = field(default_factory=set)
    formed: list[frozenset[str]] = field(default_factory=list)
    hit: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    _num_plans: WeakKeyDictionary[ProgramRun, int] = field(default_factory=WeakKeyDictionary)

    def clear(self) -> None:
        """Forget all of it, for an engine whose requests are called as another's were."""
        for part in (self.acts, self.broken, self.formed, self.hit):
            part.clear()

    def mark(self, run: ProgramRun, plan: WorkPlan) -> None:
        """Mark the latents of a denoising plan; a request may run on several ranks."""
        marked = [c.inputs["latents"] for c in plan.calls if {"latents"} <= set(c.inputs)]
        if not marked or plan.calls[0].component != DENOISER:
            return
        index = self._num_plans.get(run, 0)
        self._num_plans[run] = index + 1
        for latents in marked:
            latents.mark = Mark(run._spec.request_id, index)  # type: ignore[attr-defined]

    def alone(self, op: Op, inputs: Inputs) -> Outputs:
        """Run one call."""
        act = self.acts.get(_mark(inputs))
        return op(**inputs) if act is None else act(op, inputs)

    def together(self, stack: Stack, items: Sequence[Inputs]) -> Sequence[Outputs] | None:
        """Run a stack; what the rules forbid is none, and nothing happens in it."""
        marks = [_mark(inputs) for inputs in items]
        here = frozenset(mark.request_id for mark in marks)
        found = stack(items)
        if found is None:
            return None
        self.formed.append(here)
        for mark in dict.fromkeys(marks):
            if mark in self.acts or mark in self.broken:
                self.hit.append((mark.request_id, here))
        if not self.broken.isdisjoint(marks):
            raise MemoryError("no room for a stack")
        return [
            self.alone(lambda outputs=outputs, **_: outputs, inputs)  # type: ignore[misc]
            for inputs, outputs in zip(items, found, strict=True)
        ]


def _mark(inputs: Inputs) -> Mark:
    return inputs["latents"].mark  # type: ignore[attr-defined, no-any-return]


def install_stacks(patch: pytest.MonkeyPatch) -> Stacks:
    """Have every engine of this process play what is planned."""
    stacks = Stacks()
    next_plan, component = ProgramRun.next, ResidentModel.component

    def marked(self: ProgramRun, state: ProgramState) -> object:
        plan = next_plan(self, state)
        if isinstance(plan, WorkPlan):
            stacks.mark(self, plan)
        return plan

    def watched(self: ResidentModel, name: str) -> Component:
        found = component(self, name)
        if name == DENOISER and "op_stacked" not in vars(found):
            _watch(found, stacks)
        return found

    patch.setattr(ProgramRun, "next", marked)
    patch.setattr(ResidentModel, "component", watched)
    return stacks


def _watch(found: Component, stacks: Stacks) -> None:
    op, op_stacked = found.op, found.op_stacked  # type: ignore[attr-defined]

    def answer(name: str) -> Op:
        run = op(name)
        if name == "encode_text":  # it has no latents
            return run
        return lambda **inputs: stacks.alone(run, inputs)

    def answer_stacked(name: str, rules: BatchRules) -> Stack:
        run = op_stacked(name, rules)
        return lambda items: stacks.together(run, items)

    found.op = answer  # type: ignore[method-assign]
    found.op_stacked = answer_stacked  # type: ignore[attr-defined]


def unharmed(stacks: Stacks, finished: Mapping[str, bool]) -> Iterator[str]:
    """Yield whoever finished though another did not, after what befell it in a stack of both."""
    for victim, here in stacks.hit:
        if not finished[victim]:
            yield from (name for name in here if finished[name])
