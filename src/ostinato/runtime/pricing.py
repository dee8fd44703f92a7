"""What units will cost, as the scheduler needs to know it, and what they took, as the model learns.

A request's next unit is priced call by call. Those after it are priced by their node, since their
plans are not known yet: what a unit of that node took at this size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ostinato.loop.batch import BatchKey
from ostinato.loop.cost import PricedCall, observe, plan_work, predict, stack_work
from ostinato.request import GenerationSpec
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.scheduler import NextUnit
from ostinato.work import CostKey, CostModel, OpWork, WorkPlan

_UNIT_OP = "unit"
# Stands for the shape of a unit whose calls are not known yet; measurements put the scale right.
_FLOPS_PER_PIXEL = 1e5
_MOST_KEYS = 4096  # shapes that are remembered; more than any traffic mixes, and then forgotten


class NextPlan(NamedTuple):
    """What is known of a request's next unit before it runs.

    plan: None before the request has begun. resident: whether its components are in memory.
    plans_left: plans that each node has yet to run, this one among them.
    """

    model: ResidentModel
    spec: GenerationSpec
    node: str
    plan: WorkPlan | None
    resident: bool
    batch_key: BatchKey | None
    plans_left: Mapping[str, int]


class Priced(NamedTuple):
    """A next unit with its price, and by what it is measured; no tensor of the request.

    calls: entries of its calls and its `advance`, () when they are not known. whole: the entry of
    the unit as one of its node.
    """

    unit: NextUnit
    calls: tuple[PricedCall, ...]
    whole: PricedCall


class _Example(NamedTuple):
    """What stacks of one key are priced by: one call of it, the `advance` of a plan, its calls.

    Keys and counts only: a plan would keep the tensors of a request that has ended.
    """

    call: PricedCall
    advance: PricedCall
    num_calls: int


class Pricing:
    """Used on the device worker only."""

    def __init__(self, costs: CostModel, max_batch: int) -> None:
        """Take the cost model that is asked and taught; max_batch: most calls of a stack."""
        self.costs = costs
        self._max_batch = max_batch
        self._stacks: dict[tuple[str, BatchKey], str] = {}
        self._examples: dict[str, _Example] = {}
        self._forbidden: set[str] = set()

    def price(self, upcoming: NextPlan) -> Priced:
        """Price the next unit and what follows it."""
        entries: tuple[PricedCall, ...] = ()
        ahead = {node: self._node_s(upcoming, node) for node in upcoming.plans_left}
        unit_s = ahead.get(upcoming.node, 0.0)
        if upcoming.plan is not None and upcoming.resident:
            entries = plan_work(
                upcoming.plan,
                upcoming.model.component,
                model_id=upcoming.model.card.model_id,
                node=upcoming.node,
            )
            unit_s = predict(self.costs, entries)
        left = sum(count * ahead[node] for node, count in upcoming.plans_left.items())
        unit = NextUnit(
            unit_s=unit_s,
            remaining_s=max(unit_s, left + unit_s - ahead.get(upcoming.node, 0.0)),
            stack=self._stack(upcoming, entries),
            items=len(upcoming.plan.calls) if upcoming.plan is not None else 1,
        )
        return Priced(unit, entries, _node_entry(upcoming, upcoming.node))

    def total_s(
        self, model: ResidentModel, spec: GenerationSpec, plans: Mapping[str, int]
    ) -> float:
        """Price a request that has not begun."""
        upcoming = NextPlan(model, spec, "", None, False, None, plans)
        return sum(count * self._node_s(upcoming, node) for node, count in plans.items())

    def stack_costs(self, stack: str) -> tuple[float, ...]:
        """Return predicted seconds of 1, 2, ... stacked calls of a key."""
        example = self._examples.get(stack)
        if example is None or stack in self._forbidden:
            return ()
        advance_s = self.costs.predict(*example.advance)
        return tuple(
            self.costs.predict(
                example.call.key._replace(items=items), example.call.work.times(items)
            )
            + advance_s * -(-items // example.num_calls)
            for items in range(1, self._max_batch + 1)
        )

    def learn(self, priced: Priced, seconds: Sequence[float]) -> None:
        """Learn what a unit took that ran alone: each call, then its `advance`."""
        if priced.calls:
            observe(self.costs, priced.calls, seconds)
        observe(self.costs, (priced.whole,), (sum(seconds),))

    def stack_entries(self, units: Sequence[NextPlan]) -> tuple[PricedCall, ...]:
        """Return by what a stack is measured: all its calls, then the `advance` of each plan."""
        first = units[0]
        return stack_work(
            [unit.plan for unit in units if unit.plan is not None],
            first.model.component,
            model_id=first.model.card.model_id,
            node=first.node,
        )

    def learn_stack(
        self, entries: Sequence[PricedCall], executed_s: float, advances_s: Sequence[float]
    ) -> None:
        """Learn what a stack took, and the `advance` of each of its plans."""
        observe(self.costs, entries, (executed_s, *advances_s))

    def forbid(self, stack: str) -> None:
        """Never stack by this key again: the rules of this processor do not allow it."""
        if len(self._forbidden) >= _MOST_KEYS:
            self._forbidden.clear()
        self._forbidden.add(stack)

    def _stack(self, upcoming: NextPlan, entries: tuple[PricedCall, ...]) -> str | None:
        if self._max_batch < 2 or upcoming.batch_key is None or not entries:
            return None
        found = (upcoming.model.card.model_id, upcoming.batch_key)
        stack = self._stacks.get(found)
        if stack is None:
            if len(self._stacks) >= _MOST_KEYS:
                self._stacks.clear()
                self._examples.clear()
            stack = self._stacks[found] = f"{found[0]} {found[1]!r}"
        self._examples[stack] = _Example(entries[0], entries[-1], len(entries) - 1)
        return None if stack in self._forbidden else stack

    def _node_s(self, upcoming: NextPlan, node: str) -> float:
        return self.costs.predict(*_node_entry(upcoming, node))


def _node_entry(upcoming: NextPlan, node: str) -> PricedCall:
    spec = upcoming.spec
    form = f"{spec.height}x{spec.width}x{spec.num_frames} {spec.guidance_scale > 1.0}"
    key = CostKey(f"{upcoming.model.card.model_id}/{node}", _UNIT_OP, form, 1)
    pixels = spec.height * spec.width * spec.num_frames
    return PricedCall(key, OpWork(flops=_FLOPS_PER_PIXEL * pixels))
