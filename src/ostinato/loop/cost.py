"""Price a plan: its calls and its `advance` as entries of the cost model.

Pricing looks at shapes and never runs a kernel. What is measured later must be told under the same
keys, so keys are made here and nowhere else: by plan for a unit that runs alone, by stack for
plans that share a forward.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, cast, runtime_checkable

from ostinato.errors import InvalidPlan
from ostinato.loop.contract import Component
from ostinato.loop.observe import PlanWatch, Tap
from ostinato.work import CacheRef, ComponentCall, CostKey, CostModel, OpWork, OutputOf, WorkPlan

# Per element of the latents, generously: guidance takes three operations, a sampler step and the
# look for NaN a few each; every one of them reads two tensors and writes one.
_ADVANCE_FLOPS = 16.0
_ADVANCE_VALUES = 24.0
_FLOAT32_BYTES = 4.0
# What a component without an `estimate` is taken to do with each element of its inputs: as much as
# a linear layer of width 512 does. Measurements put the scale right; the shape of it is all.
_GENERIC_FLOPS = 1024.0

Resident = Callable[[str], Component]
"""The resident set, by component name."""


@runtime_checkable
class Estimated(Protocol):
    """A component that can say what a call takes before it runs."""

    def estimate(self, op: str, inputs: Mapping[str, object]) -> OpWork:
        """Count a call's work from the shapes of its inputs; runs no kernel, loads nothing.

        inputs: resolved or not: a `CacheRef` stands for its pages' tokens. Equal shapes and
        scalars must give equal work. Raises InvalidPlan for an op that there is not.
        """
        ...


class PricedCall(NamedTuple):
    """What is predicted and measured as one: what it is, and its estimated work."""

    key: CostKey
    work: OpWork


class CallClock:
    """Times the calls of one plan, beside another witness if there is one."""

    def __init__(self, beside: PlanWatch | None = None) -> None:
        """Start with no call; what `beside` does is not counted."""
        self.seconds: list[float] = []  # of each call, in the order in which they ran
        self._beside = beside
        self._started = 0.0

    def started(self, call: ComponentCall, inputs: Mapping[str, object]) -> Tap | None:
        """Start the clock, after the other witness has looked."""
        tap = None if self._beside is None else self._beside.started(call, inputs)
        self._started = time.perf_counter()
        return tap

    def finished(self, call: ComponentCall, outputs: Mapping[str, object]) -> None:
        """Stop the clock, before the other witness looks."""
        self.seconds.append(time.perf_counter() - self._started)
        if self._beside is not None:
            self._beside.finished(call, outputs)


def call_key(model_id: str, call: ComponentCall, items: int = 1) -> CostKey:
    """Return what a call is measured by; items: equal calls that are stacked into one."""
    return CostKey(f"{model_id}/{call.component}", call.op, _form(call.inputs), items)


def call_work(call: ComponentCall, component: Component) -> OpWork:
    """Return a call's estimated work: its component's own word, or a generic one.

    The generic estimate takes every element of every tensor input for the same work. Raises
    InvalidPlan for an op that there is not.
    """
    if isinstance(component, Estimated):
        return component.estimate(call.op, call.inputs)
    elements = sum(_elements(value) for value in call.inputs.values())
    return OpWork(flops=_GENERIC_FLOPS * elements, activation_bytes=2.0 * _FLOAT32_BYTES * elements)


def plan_work(
    plan: WorkPlan, component: Resident, *, model_id: str, node: str
) -> tuple[PricedCall, ...]:
    """Return the entries of a unit that runs alone: its calls in the order they run, `advance`."""
    return calls_work(plan.ordered(), component, model_id=model_id, node=node)


def calls_work(
    calls: Sequence[ComponentCall], component: Resident, *, model_id: str, node: str
) -> tuple[PricedCall, ...]:
    """Return the entries of the calls of one unit, then that of its `advance`."""
    entries = [
        PricedCall(call_key(model_id, call), call_work(call, component(call.component)))
        for call in calls
    ]
    return (*entries, advance_work(calls, model_id=model_id, node=node))


def stack_work(
    plans: Sequence[WorkPlan], component: Resident, *, model_id: str, node: str
) -> tuple[PricedCall, ...]:
    """Return the entries of a stack: all calls as one, then the `advance` of each plan.

    Plans of one batch key may still differ in what each of their calls attends to; a stack of
    such is measured as itself. Raises InvalidPlan for plans without a call, or of several ops.
    """
    calls = [call for plan in plans for call in plan.calls]
    if len({(call.component, call.op) for call in calls}) != 1:
        raise InvalidPlan(
            f"a stack is of one op; these {len(calls)} calls are of "
            f"{sorted({f'{call.component}.{call.op}' for call in calls})}"
        )
    keys = [call_key(model_id, call, len(calls)) for call in calls]
    forms = sorted(key.form for key in keys)
    key = keys[0] if forms[0] == forms[-1] else keys[0]._replace(form=_mixed(forms))
    works = [call_work(call, component(call.component)) for call in calls]
    stack = OpWork(
        flops=sum(work.flops for work in works),
        weight_bytes=max(work.weight_bytes for work in works),
        activation_bytes=sum(work.activation_bytes for work in works),
    )
    advances = (advance_work(plan.calls, model_id=model_id, node=node) for plan in plans)
    return (PricedCall(key, stack), *advances)


def advance_work(calls: Sequence[ComponentCall], *, model_id: str, node: str) -> PricedCall:
    """Return the entry of what follows a unit's calls: NaN watch, commits, guidance, sampler step.

    Its work is counted from the elements of the `latents` that the calls take. Each op that a node
    calls has an `advance` of its own: storing a block is not stepping a sampler.
    """
    latents = [call.inputs["latents"] for call in calls if "latents" in call.inputs]
    elements = max([0, *map(_elements, latents)])
    form = f"{_text(latents[0]) if latents else ''} calls={len(calls)}"
    ops = "+".join(sorted({call.op for call in calls}))
    key = CostKey(f"{model_id}/{node}", f"advance {ops}", form, 1)
    work = OpWork(
        flops=_ADVANCE_FLOPS * elements,
        activation_bytes=_ADVANCE_VALUES * _FLOAT32_BYTES * elements,
    )
    return PricedCall(key, work)


def predict(model: CostModel, entries: Sequence[PricedCall]) -> float:
    """Return the predicted device-seconds of entries that run one after the other."""
    return sum(model.predict(entry.key, entry.work) for entry in entries)


def observe(model: CostModel, entries: Sequence[PricedCall], seconds: Sequence[float]) -> None:
    """Learn what each entry took, in the same order; raises ValueError unless they are as many."""
    for entry, spent in zip(entries, seconds, strict=True):
        model.observe(entry.key, entry.work, spent)


def predict_plan(
    model: CostModel, plan: WorkPlan, component: Resident, *, model_id: str, node: str
) -> float:
    """Return the predicted device-seconds of a unit alone, its `advance` included."""
    return predict(model, plan_work(plan, component, model_id=model_id, node=node))


def predict_stack(
    model: CostModel,
    plan: WorkPlan,
    component: Resident,
    items: int,
    *,
    model_id: str,
    node: str,
) -> float:
    """Return the predicted device-seconds of `items` calls like this plan's, as one stack.

    Each of the plans that bring the calls is advanced on its own.
    """
    call = plan.calls[0]
    stack = PricedCall(
        call_key(model_id, call, items), call_work(call, component(call.component)).times(items)
    )
    advance = advance_work(plan.calls, model_id=model_id, node=node)
    num_plans = -(-items // len(plan.calls))
    return predict(model, (stack, *[advance] * num_plans))


def _form(inputs: Mapping[str, object]) -> str:
    """Describe the inputs of a call by what its time depends on, as short text."""
    return " ".join(f"{name}={_text(value)}" for name, value in sorted(inputs.items()))


def _text(value: object) -> str:
    """Describe a value as a batch key does, but for text: its length counts, not its words.

    Lengths are rounded up to a power of two, so that prompts share what is measured.
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{_short(value)}[{','.join(map(str, cast('Sequence[int]', shape)))}]"
    if isinstance(value, CacheRef):
        return f"pages{len(value.pages)}"
    if isinstance(value, OutputOf):
        return f"{value.name} of a call"
    if isinstance(value, tuple):
        items = map(_text, cast("tuple[object, ...]", value))
        runs = [(text, sum(1 for _ in run)) for text, run in groupby(items)]
        return f"({' '.join(text if n == 1 else f'{n}*{text}' for text, n in runs)})"
    if isinstance(value, str):
        return f"text{1 << max(len(value) - 1, 0).bit_length()}"
    return repr(value) if isinstance(value, bool | int | float | None) else type(value).__name__


def _short(value: object) -> str:
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


def _mixed(forms: Sequence[str]) -> str:
    """Name a stack of unlike calls; their order in it makes no difference."""
    digest = hashlib.blake2b("\n".join(forms).encode(), digest_size=12).hexdigest()
    return f"mixed {digest}"


def _elements(value: object) -> int:
    """Return the elements of all tensors in a value."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        number = 1
        for size in cast("Sequence[int]", shape):
            number *= size
        return number
    if isinstance(value, tuple):
        return sum(_elements(item) for item in cast("tuple[object, ...]", value))
    return 0
