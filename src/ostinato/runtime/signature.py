"""The shape of a plan as a key: cheap to make, and equal only for plans that cost the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import torch

from ostinato.work import CacheRef, WorkPlan

# Of a long tuple - one entry a layer, all alike - the first stands for the others.
_LONGEST = 4


def plan_signature(plan: WorkPlan) -> Hashable:
    """Return what a plan's price and stacks depend on: ops, shapes, dtypes, scalars."""
    return tuple(
        (call.component, call.op, *[(name, _sign(v)) for name, v in call.inputs.items()])
        for call in plan.calls
    )


def _sign(value: object) -> Hashable:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype)
    if isinstance(value, CacheRef):
        return ("pages", len(value.pages))
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        few = items if len(items) <= _LONGEST else items[:1]
        return (len(items), *[_sign(item) for item in few])
    return (type(value), value) if isinstance(value, Hashable) else type(value)
