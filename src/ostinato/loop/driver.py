"""Drive one loop to its end: the order of `next`, execute, commit and `advance`, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ostinato.loop.contract import Component, Done, Loop, LoopResult, Pages
from ostinato.loop.execute import commit, execute
from ostinato.work import WorkPlan, WorkResult

S = TypeVar("S")


def run_plan(
    plan: WorkPlan, component: Callable[[str], Component], pages: Pages, *, with_grad: bool = False
) -> WorkResult:
    """Execute a plan and commit its pages: one work unit."""
    result = execute(plan, component, pages, with_grad=with_grad)
    commit(plan, result, pages)
    return result


def drive(
    loop: Loop[S],
    state: S,
    component: Callable[[str], Component],
    pages: Pages,
    *,
    with_grad: bool = False,
) -> Iterator[S]:
    """Yield the state after each step until the loop is done.

    The engine interleaves many loops and so does not call this; training re-drives a loop with
    it, and tests hold the engine against it.
    """
    while not isinstance(plan := loop.next(state), Done):
        result = run_plan(plan, component, pages, with_grad=with_grad)
        state = loop.advance(state, result)
        yield state


def drive_to_end(
    loop: Loop[S], state: S, component: Callable[[str], Component], pages: Pages
) -> LoopResult:
    """Drive without looking at the states in between; returns what the loop leaves behind."""
    for reached in drive(loop, state, component, pages):
        state = reached
    return loop.finalize(state)
