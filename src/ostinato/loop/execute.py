"""Run a plan on resident components: resolve references, call ops, keep no state.

`execute` has no side effects, so a plan can be run twice with the same result, and with grad.
`commit` is the one place where a plan's new keys and values are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch

from ostinato.errors import InvalidPlan
from ostinato.loop.contract import Component, LayerEntry, Pages
from ostinato.loop.observe import PlanWatch, observing
from ostinato.work import (
    CacheRef,
    ComponentCall,
    Granularity,
    OutputOf,
    WorkPlan,
    WorkResult,
    plain_tuple,
)


def execute(
    plan: WorkPlan,
    component: Callable[[str], Component],
    pages: Pages,
    *,
    with_grad: bool = False,
    watch: PlanWatch | None = None,
) -> WorkResult:
    """Run the calls of `plan` in dependency order.

    component: the resident set, by component name. with_grad: record for autograd (training);
    serving runs under no_grad, never inference_mode, so that states can be re-entered. watch: a
    witness of every call.
    Raises InvalidPlan for an unknown call or output, and whatever `component` and its `op` raise
    for a name they do not know.
    """
    outputs: dict[str, Mapping[str, object]] = {}
    with torch.set_grad_enabled(with_grad):
        for call in plan.ordered():
            inputs = resolve_inputs(call, outputs, pages)
            found = component(call.component)
            with observing(found, None if watch is None else watch.started(call, inputs)):
                outputs[call.call_id] = found.op(call.op)(**inputs)
            if watch is not None:
                watch.finished(call, outputs[call.call_id])
    return WorkResult(outputs=outputs)


def resolve_inputs(
    call: ComponentCall, outputs: Mapping[str, Mapping[str, object]], pages: Pages
) -> dict[str, object]:
    """Put values in the place of a call's references; outputs: of the calls before it.

    Raises InvalidPlan for an output that is not there, PageViolation for a page that is not.
    """
    return {name: _resolve(value, call, outputs, pages) for name, value in call.inputs.items()}


def commit(plan: WorkPlan, result: WorkResult, pages: Pages) -> None:
    """Write the plan's new keys and values into their pages, once."""
    for entry in plan.commits:
        layers = result.get(entry.output.call, entry.output.name)
        if not isinstance(layers, tuple):
            raise InvalidPlan(
                f"output {entry.output.name!r} of call {entry.output.call!r} is to be committed, "
                f"but it is one {type(layers).__name__}; expected a tuple, an entry a layer"
            )
        pages.commit(entry.target, cast("tuple[LayerEntry, ...]", layers))


def _resolve(
    value: object,
    call: ComponentCall,
    outputs: Mapping[str, Mapping[str, object]],
    pages: Pages,
) -> object:
    if isinstance(value, torch.Tensor):
        return value
    items = plain_tuple(value)
    if any(isinstance(item, CacheRef | OutputOf) for item in items):
        return tuple([_resolve(item, call, outputs, pages) for item in items])
    if isinstance(value, CacheRef):
        return pages.read(value)
    if not isinstance(value, OutputOf):
        return value
    try:
        found = outputs[value.call][value.name]
    except KeyError:
        raise InvalidPlan(
            f"call {call.call_id!r} reads output {value.name!r} of {value.call!r}, which gives "
            f"{sorted(outputs.get(value.call, {}))}"
        ) from None
    per_layer = isinstance(found, tuple)
    if value.granularity is Granularity.LAYER and not per_layer:
        raise InvalidPlan(
            f"call {call.call_id!r} reads {value.name!r} of {value.call!r} layer by layer, but it "
            f"is one {type(found).__name__}"
        )
    return cast("object", found)
