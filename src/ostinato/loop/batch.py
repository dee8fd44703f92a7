"""Run the plans of several requests as one: equal calls are stacked into one forward.

A component says which of its ops can be stacked, and stacks them itself; here calls are only
grouped. Under exact rules each request gets the bytes that it would get alone, whatever the stack
is made of: a stack that cannot keep that promise on this processor runs its calls one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import torch

from ostinato.backend.batch_rules import StackRules
from ostinato.errors import InvalidPlan
from ostinato.loop.contract import Component, Pages
from ostinato.loop.execute import execute, resolve_inputs
from ostinato.work import CacheRef, ComponentCall, OutputOf, WorkPlan, WorkResult

Inputs: TypeAlias = Mapping[str, object]
Outputs: TypeAlias = Mapping[str, object]


@runtime_checkable
class Stackable(Protocol):
    """A component some of whose ops take many requests at once.

    stacked_ops: by op, the inputs whose shape or value may differ from request to request; all
    others must agree.
    """

    @property
    def stacked_ops(self) -> Mapping[str, frozenset[str]]: ...

    def op_stacked(
        self, name: str, rules: StackRules
    ) -> Callable[[Sequence[Inputs]], Sequence[Outputs] | None]:
        """Return an op that takes the inputs of many calls and gives each its outputs.

        It returns None where the rules forbid a stack of these: then they run one by one.
        """
        ...


class BatchKey(NamedTuple):
    """What calls agree on that may be stacked."""

    component: str
    op: str
    inputs: tuple[tuple[str, Hashable], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one plan got out of a stack: its result, or what went wrong for it alone.

    stacked: whether the plan shared a forward, or had to run by itself after all. exact: whether
    the result has the bytes that the plan gives alone. stack_error: of a stack that failed although
    each of its plans runs alone.
    """

    result: WorkResult | None = None
    error: BaseException | None = None
    stacked: bool = False
    exact: bool = True
    stack_error: BaseException | None = None


def batch_key(plan: WorkPlan, component: Callable[[str], Component]) -> BatchKey | None:
    """Return what a plan can be stacked by; None for one that runs alone.

    A plan can be stacked when its calls do not need each other and have one key.
    """
    keys = {_call_key(call, component) for call in plan.calls}
    return keys.pop() if len(keys) == 1 else None


def execute_together(
    plans: Sequence[WorkPlan],
    component: Callable[[str], Component],
    pages: Pages,
    rules: StackRules,
) -> tuple[Share, ...]:
    """Run plans of one key as one stack, under no_grad; one share for each, in order.

    A stack that raises is run again plan by plan, so that a fault stays with whose it is; one that
    is nobody's is told with every share.
    Raises InvalidPlan for plans that differ in key or have none.
    """
    keys = {batch_key(plan, component) for plan in plans}
    key = next(iter(keys)) if len(keys) == 1 else None
    if key is None:
        raise InvalidPlan(
            f"plans that are stacked must have one and the same batch key; these have {keys}"
        )
    calls = [call for plan in plans for call in plan.calls]
    found = component(key.component)
    assert isinstance(found, Stackable), "only stackable calls have a key"
    failed: BaseException | None = None
    try:
        with torch.no_grad():
            inputs = [resolve_inputs(call, {}, pages) for call in calls]
            stacked = found.op_stacked(key.op, rules)(inputs)
        if stacked is not None:
            return _shares(plans, stacked, exact=rules.exact)
    except BaseException as error:  # told by whichever plan raises it again, or else by all
        failed = error
    alone = execute_each(plans, component, pages)
    if failed is None or any(share.error is not None for share in alone):
        return alone
    return tuple(replace(share, stack_error=failed) for share in alone)


def execute_each(
    plans: Sequence[WorkPlan], component: Callable[[str], Component], pages: Pages
) -> tuple[Share, ...]:
    """Run plans one by one; a share for each, in order, with what went wrong for it alone."""
    return tuple(_alone(plan, component, pages) for plan in plans)


def _shares(
    plans: Sequence[WorkPlan], stacked: Sequence[Outputs], *, exact: bool
) -> tuple[Share, ...]:
    calls = [call for plan in plans for call in plan.calls]
    outputs = iter([outputs for _, outputs in zip(calls, stacked, strict=True)])
    return tuple(
        Share(
            result=WorkResult(outputs={call.call_id: next(outputs) for call in plan.calls}),
            stacked=True,
            exact=exact,
        )
        for plan in plans
    )


def _alone(plan: WorkPlan, component: Callable[[str], Component], pages: Pages) -> Share:
    try:
        return Share(result=execute(plan, component, pages))
    except BaseException as error:
        return Share(error=error)


def _call_key(call: ComponentCall, component: Callable[[str], Component]) -> BatchKey | None:
    found = component(call.component)
    if not isinstance(found, Stackable) or call.op not in found.stacked_ops:
        return None
    if any(True for _ in call.dependencies()):
        return None
    free = found.stacked_ops[call.op]
    fixed = sorted((name, _form(v)) for name, v in call.inputs.items() if name not in free)
    return BatchKey(call.component, call.op, tuple(fixed))


def _form(value: object) -> Hashable:
    """Describe an input: a tensor by shape and dtype, a tuple by its items, a scalar by itself."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), str(value.dtype))
    if isinstance(value, CacheRef):
        return ("pages", len(value.pages))
    if isinstance(value, tuple):
        return ("tuple", *(_form(item) for item in cast("tuple[object, ...]", value)))
    assert not isinstance(value, OutputOf), "calls with dependencies have no key"
    return (type(value).__name__, value if isinstance(value, Hashable) else id(value))
