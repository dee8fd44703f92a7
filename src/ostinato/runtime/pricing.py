"""What units will cost, as the scheduler needs to know it, and what they took, as the model learns.

A request's next unit is priced call by call. Those after it are priced by their node, since their
plans are not known yet: what a unit of that node took at this size. What depends on shapes alone is
worked out once for each shape: a price must cost far less than the unit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from ostinato.loop.batch import batch_key
from ostinato.loop.cost import PricedCall, observe, plan_work
from ostinato.request import GenerationSpec
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.scheduler import NextUnit, StackTable
from ostinato.runtime.signature import plan_signature
from ostinato.runtime.stack_table import TRIALS, stack_table
from ostinato.runtime.stacking import Stacking
from ostinato.work import CostKey, CostModel, OpWork, WorkPlan

_UNIT_OP = "unit"
# Stands for the shape of a unit whose calls are not known yet; measurements put the scale right.
_FLOPS_PER_PIXEL = 1e5
_MOST_SHAPES = 4096  # that are remembered; more than any traffic mixes, and then begun anew
_TABLE_USES = 8  # of a table of stacked costs before it is made anew from what was learnt since
# One in so many tables has sizes tried again that did not pay: nothing else would measure them.
_RETRIED = 32


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


class Pricing:
    """Used on the device worker only."""

    def __init__(
        self, costs: CostModel, max_batch: int, stacking: Stacking = Stacking.WHEN_IT_PAYS
    ) -> None:
        """Take the cost model that is asked and taught; max_batch: most calls of a stack."""
        self._stacking = stacking
        self.costs = costs
        self._max_batch = max_batch
        self._shapes: dict[Hashable, Shape] = {}
        self._wholes: dict[Hashable, PricedCall] = {}
        self._of_stack: dict[str, Shape] = {}
        self._tables: dict[str, tuple[int, StackTable]] = {}
        self._num_tables = 0
        self._forbidden: set[str] = set()

    def price(self, upcoming: NextPlan) -> Priced:
        """Price the next unit and what follows it.

        Raises whatever a component raises when it is asked what it stacks.
        """
        shape = self._shape(upcoming)
        whole = self._whole(upcoming, upcoming.node)
        as_whole = self._add_up((whole,))
        here = as_whole if shape is None else self._add_up(shape.entries)
        left = self.total(upcoming.model, upcoming.spec, upcoming.plans_left)
        stack = shape.stack if shape is not None else None
        unit = NextUnit(
            unit_s=here.seconds,
            remaining_s=max(here.seconds, left.seconds + here.seconds - as_whole.seconds),
            unmeasured_s=max(0.0, left.unmeasured_s + here.unmeasured_s - as_whole.unmeasured_s),
            stack=None if stack in self._forbidden else stack,
            items=len(upcoming.plan.calls) if upcoming.plan is not None else 1,
        )
        return Priced(unit, shape, whole)

    def total(self, model: ResidentModel, spec: GenerationSpec, plans: Mapping[str, int]) -> Total:
        """Price so many plans of each node."""
        upcoming = NextPlan(model, spec, "", None, False, plans)
        seconds = unmeasured_s = 0.0
        for node, count in plans.items():
            if count:
                one = self._add_up((self._whole(upcoming, node),))
                seconds += count * one.seconds
                unmeasured_s += count * one.unmeasured_s
        return Total(seconds, unmeasured_s)

    def _add_up(self, entries: Sequence[PricedCall]) -> Total:
        priced = [(self.costs.predict(*e), self.costs.num_measured(*e)) for e in entries]
        return Total(sum(s for s, _ in priced), sum(s for s, times in priced if times < TRIALS))

    def stack_costs(self, stack: str) -> StackTable:
        """Return what stacked calls of a key are taken to cost, each plan's `advance` included."""
        shape = self._of_stack.get(stack)
        if shape is None or stack in self._forbidden:
            return StackTable()
        uses, table = self._tables.get(stack, (0, StackTable()))
        if not uses:
            uses, table = _TABLE_USES, self._table(shape)
        self._tables[stack] = (uses - 1, table)
        return table

    def well_known(self, priced: Priced, *, stacked: bool) -> bool:
        """Whether measuring a unit once more would change little; stacked: its calls were one."""
        if priced.shape is None:
            return False
        *calls, advance = priced.shape.entries
        entries = [stack_of(calls), advance] if stacked else priced.shape.entries
        return all(self.costs.settled(*entry) for entry in entries)

    def learn(self, priced: Priced, seconds: Sequence[float]) -> None:
        """Learn what a unit took that ran alone: each call, then its `advance`."""
        if priced.shape is not None:
            observe(self.costs, priced.shape.entries, seconds)
        observe(self.costs, (priced.whole,), (sum(seconds),))

    def learn_stack(
        self, group: Sequence[Priced], executed_s: float, advances_s: Sequence[float]
    ) -> None:
        """Learn what a stack took, and the `advance` of each of its plans.

        Calls of one key may still attend to more or less: the stack counts as one of its largest
        call, at the same operations a second.
        """
        shapes = [priced.shape for priced in group if priced.shape is not None]
        calls = [call for shape in shapes for call in shape.entries[:-1]]
        stack, flops = stack_of(calls), sum(call.work.flops for call in calls)
        scale = stack.work.flops / flops if flops > 0 else 1.0
        self.costs.observe(*stack, scale * executed_s)
        for shape, advance_s in zip(shapes, advances_s, strict=True):
            self.costs.observe(*shape.entries[-1], advance_s)
        for priced, shape, advance_s in zip(group, shapes, advances_s, strict=True):
            part = (len(shape.entries) - 1) / len(calls)
            self.costs.observe(*priced.whole, part * executed_s + advance_s)

    def forbid(self, stack: str) -> None:
        """Never stack by this key again: the rules of this processor do not allow it."""
        if len(self._forbidden) >= _MOST_SHAPES:
            self._forbidden.clear()
        self._forbidden.add(stack)

    def _table(self, shape: Shape) -> StackTable:
        call, *_, advance = shape.entries
        if self._stacking is Stacking.ALWAYS:  # as if all after the first cost nothing
            return StackTable((self.costs.predict(*call),) * self._max_batch)
        advance_s, num_calls = self.costs.predict(*advance), len(shape.entries) - 1

        def price(items: int) -> float:
            return self.costs.predict(*stack_of([call] * items)) + advance_s * -(
                -items // num_calls
            )

        def known(items: int) -> bool:
            return items == 1 or self.costs.num_measured(*stack_of([call] * items)) >= TRIALS

        sizes = filter(known, range(1, self._max_batch + 1))
        measured = {items: price(items) for items in sizes}
        table = stack_table(measured, price, most=self._max_batch)
        self._num_tables += 1
        if self._num_tables % _RETRIED == 0 and not table.trial:
            trial = self._max_batch if self._num_tables // _RETRIED % 2 else 2
            return table._replace(trial=trial)
        return table

    def _shape(self, upcoming: NextPlan) -> Shape | None:
        if upcoming.plan is None:
            return None
        model_id = upcoming.model.card.model_id
        signature = (model_id, upcoming.node, plan_signature(upcoming.plan))
        found = self._shapes.get(signature)
        if found is None:
            if len(self._shapes) >= _MOST_SHAPES:
                for known in (self._shapes, self._of_stack, self._tables):
                    known.clear()
            try:
                entries = plan_work(
                    upcoming.plan, upcoming.model.component, model_id=model_id, node=upcoming.node
                )
            except Exception:  # no estimate costs a request its price and its company, not its life
                return None
            stacks = upcoming.stackable and self._max_batch > 1
            key = batch_key(upcoming.plan, upcoming.model.component) if stacks else None
            stack = None if key is None else f"{model_id} {key!r}"
            found = self._shapes[signature] = Shape(entries, stack)
        if found.stack is not None:
            self._of_stack[found.stack] = found
        return found

    def _whole(self, upcoming: NextPlan, node: str) -> PricedCall:
        spec = upcoming.spec
        size = (spec.height, spec.width, spec.num_frames, spec.guidance_scale > 1.0)
        signature = (upcoming.model.card.model_id, node, size)
        found = self._wholes.get(signature)
        if found is None:
            if len(self._wholes) >= _MOST_SHAPES:
                self._wholes.clear()
            key = CostKey(f"{signature[0]}/{node}", _UNIT_OP, repr(size), 1)
            pixels = spec.height * spec.width * spec.num_frames
            work = OpWork(flops=_FLOPS_PER_PIXEL * pixels)
            found = self._wholes[signature] = PricedCall(key, work)
        return found


def stack_of(calls: Sequence[PricedCall]) -> PricedCall:
    """Return the entry of calls that are stacked: as many of the largest of them."""
    largest = max(calls, key=lambda call: call.work.flops)
    key = largest.key._replace(items=len(calls))
    return PricedCall(key, largest.work.times(len(calls)))
