"""Something that happens to one request at one of its calls, and what must be left afterwards.

The plans of a request that was picked out by its seed name ops of its own, `predict@7` in place of
`predict`. Such an op runs the real one, with an act around it; nobody else ever calls it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from ostinato.loop.contract import Component
from ostinato.program import ProgramRun, ProgramState
from ostinato.request import Cancelled, Event, Failed, Finished
from ostinato.runtime import Handle, Output, ResidentModel
from ostinato.work import WorkPlan

Op = Callable[..., Mapping[str, object]]
Inputs = Mapping[str, object]
Act = Callable[[Op, Inputs], Mapping[str, object]]
WAIT_S = 60.0
DESCRIPTORS = Path("/proc/self/fd")


@dataclass
class Acts:
    """Which request meets what at which of its calls, counted from 0; and the calls it made."""

    acts: dict[int, Mapping[int, Act]] = field(default_factory=dict)
    made: dict[int, list[str]] = field(default_factory=dict)

    def plan(self, seed: int, acts: Mapping[int, Act]) -> None:
        """Pick out the request with this seed."""
        self.acts[seed], self.made[seed] = acts, []

    def call(self, seed: int, name: str, op: Op, inputs: Inputs) -> Mapping[str, object]:
        """Run one call of a request that was picked out."""
        index = len(self.made[seed])
        self.made[seed].append(name)
        act = self.acts[seed].get(index)
        return op(**inputs) if act is None else act(op, inputs)


def install_acts(patch: pytest.MonkeyPatch) -> Acts:
    """Have every engine of this process play the acts."""
    acts = Acts()
    next_plan, component = ProgramRun.next, ResidentModel.component

    def renamed(self: ProgramRun, state: ProgramState) -> object:
        plan, seed = next_plan(self, state), self._spec.seed
        if seed not in acts.acts or not isinstance(plan, WorkPlan):
            return plan
        calls = tuple(replace(call, op=f"{call.op}@{seed}") for call in plan.calls)
        return replace(plan, calls=calls)

    def acting(self: ResidentModel, name: str) -> Component:
        found = component(self, name)
        if "op" not in vars(found):
            found.op = _op(acts, found.op, name)  # type: ignore[method-assign]
        return found

    patch.setattr(ProgramRun, "next", renamed)
    patch.setattr(ResidentModel, "component", acting)
    return acts


def _op(acts: Acts, op: Callable[[str], Op], component: str) -> Callable[[str], Op]:
    """Answer also to the ops of requests that were picked out."""

    def answer(name: str) -> Op:
        plain, _, seed = name.partition("@")
        found = op(plain)
        if not seed:
            return found
        return lambda **inputs: acts.call(int(seed), f"{component}.{plain}", found, inputs)

    return answer


def raising(error: BaseException) -> Act:
    """Raise in place of the call."""

    def act(op: Op, inputs: Inputs) -> Mapping[str, object]:
        raise error

    return act


def doing(action: Callable[[], object]) -> Act:
    """Do something else first, then the call."""

    def act(op: Op, inputs: Inputs) -> Mapping[str, object]:
        action()
        return op(**inputs)

    return act


def cancelling(handle: Future[Handle]) -> Act:
    """Cancel in the middle of the call."""
    return doing(lambda: handle.result(WAIT_S).cancel())


def poisoned(op: Op, inputs: Inputs) -> Mapping[str, object]:
    """Put NaN into the last value of every floating-point tensor; what is bytes stays."""
    return {name: _poisoned(value) for name, value in op(**inputs).items()}


def _poisoned(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        spoilt = value.clone()
        spoilt[(-1,) * spoilt.dim()] = float("nan")
        return spoilt
    if isinstance(value, tuple) and value and not isinstance(value[0], str):
        items = [_poisoned(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


@dataclass(frozen=True)
class Holdings:
    """What the process holds that a request could leave behind."""

    threads: frozenset[int | None]
    descriptors: int | None

    @staticmethod
    def now() -> Holdings:
        """Count."""
        here = len(os.listdir(DESCRIPTORS)) if DESCRIPTORS.is_dir() else None
        return Holdings(frozenset(t.ident for t in threading.enumerate()), here)


def assert_nothing_held(
    before: Holdings, residents: Iterable[ResidentModel], handles: Iterable[Handle]
) -> None:
    """Hold what is left against the start: pages, bytes, scopes, threads, descriptors."""
    for resident in residents:
        assert (resident.pages.num_pages, resident.pages.num_bytes) == (0, 0)
    for handle in handles:
        assert handle.done
        assert (handle.num_held, handle._scope.closed) == (0, True)
    now = Holdings.now()
    # What an earlier test left behind may have ended meanwhile.
    assert now.threads <= before.threads
    assert now.descriptors is None or now.descriptors <= (before.descriptors or 0)


def ended(handle: Handle) -> Event:
    """Wait for the end; returns the final event, after looking at all of them."""
    handle.wait(WAIT_S)
    events = list(handle.events(WAIT_S))
    assert [event.sequence for event in events] == list(range(len(events)))
    final = [isinstance(event, Finished | Failed | Cancelled) for event in events]
    assert final == [False] * (len(events) - 1) + [True]
    return events[-1]


def equal(one: Output, other: Output) -> bool:
    """Tell whether clips and latents are the same bytes."""
    return torch.equal(one.latents, other.latents) and bool(
        (one.video.frames == other.video.frames).all()
    )
