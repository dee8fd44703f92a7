"""A next unit as it is priced: what is known of it, its shape, its price."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from ostinato.loop.cost import PricedCall
from ostinato.request import GenerationSpec
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.scheduler import NextUnit
from ostinato.runtime.signature import plan_signature
from ostinato.work import WorkPlan


class NextPlan(NamedTuple):
    """What is known of a request's next unit before it runs.

    plan: None before the request has begun, or when its components are not in memory.
    stackable: whether it may share a forward. plans_left: plans that each node has yet to run, this
    one among them.
    """

    model: ResidentModel
    spec: GenerationSpec
    node: str
    plan: WorkPlan | None
    stackable: bool
    plans_left: Mapping[str, int]


class Shape(NamedTuple):
    """What all plans of one shape share; entries: of its calls and its `advance`.

    stack: what plans can be stacked by, None for one that runs alone.
    """

    entries: tuple[PricedCall, ...]
    stack: str | None


class Priced(NamedTuple):
    """A next unit with its price, and by what it is measured; no tensor of the request.

    shape: None where its calls are not known. whole: the entry of the unit as one of its node.
    """

    unit: NextUnit
    shape: Shape | None
    whole: PricedCall


class Total(NamedTuple):
    """Predicted device-seconds; unmeasured_s: the part that was seldom measured or never."""

    seconds: float
    unmeasured_s: float


def signature_of(upcoming: NextPlan) -> Hashable:
    """Return what units of one shape share; of one whose plan is known."""
    assert upcoming.plan is not None, "what has no plan has no shape"
    return (upcoming.model.card.model_id, upcoming.node, plan_signature(upcoming.plan))


def stack_of(calls: Sequence[PricedCall]) -> PricedCall:
    """Return the entry of calls that are stacked: as many of the largest of them."""
    largest = max(calls, key=lambda call: call.work.flops)
    key = largest.key._replace(items=len(calls))
    return PricedCall(key, largest.work.times(len(calls)))
