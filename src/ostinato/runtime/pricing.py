"""What units will cost, as the scheduler needs to know it, and what they took, as the model learns.

A request's next unit is priced call by call. Those after it are priced by their node, since their
plans are not known yet: what a unit of that node took at this size. What depends on shapes alone is
worked out once for each shape: a price must cost far less than the unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from ostinato.loop.batch import batch_key
from ostinato.loop.cost import PricedCall, observe, plan_work
from ostinato.request import GenerationSpec
from ostinato.runtime.priced import NextPlan, Priced, Shape, Total, signature_of, stack_of
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.scheduler import NextUnit, StackTable
from ostinato.runtime.stack_table import TRIALS, stack_table
from ostinato.runtime.stacking import Stacking
from ostinato.work import CostKey, CostModel, OpWork

_UNIT_OP = "unit"
# Stands for the shape of a unit whose calls are not known yet; measurements put the scale right.
_FLOPS_PER_PIXEL = 1e5
_MOST_SHAPES = 4096  # that are remembered; more than any traffic mixes, and then begun anew
_TABLE_USES = 8  # of a table of stacked costs before it is made anew from what was learnt since
# One in so many tables has sizes tried again that did not pay: nothing else would measure them.
_RETRIED = 32
_LEAST = 2  # calls of a stack


class _Table(NamedTuple):
    """Prices of one stack key; number: of tables of this key so far."""

    uses_left: int = 0
    number: int = 0
    prices: StackTable = StackTable()


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
        self._tables: dict[str, _Table] = {}
        self._most: dict[str, int] = {}  # calls that may be stacked, where not all may
        self._faults: Counter[str] = Counter()  # of stacks that failed though each plan runs alone

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
            stack=None if self._most_of(stack) < _LEAST else stack,
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
        most = self._most_of(stack)
        if shape is None or most < _LEAST:
            return StackTable()
        table = self._tables.get(stack) or _Table()
        if not table.uses_left:
            table = _Table(_TABLE_USES, table.number + 1, self._table(shape, most, table.number))
        self._tables[stack] = table._replace(uses_left=table.uses_left - 1)
        return table.prices

    def well_known(self, shape: Shape, *, stacked: bool) -> bool:
        """Whether measuring a unit once more would change little; stacked: its calls were one."""
        *calls, advance = shape.entries
        entries = [stack_of(calls), advance] if stacked else shape.entries
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

    def forbid(self, stack: str, items: int) -> None:
        """Never stack so many calls of a key again: the rules of batching do not allow it."""
        if len(self._most) >= _MOST_SHAPES:
            self._most.clear()
        self._most[stack] = min(self._most_of(stack), items - 1)
        self._tables.pop(stack, None)

    def fault(self, stack: str, items: int) -> None:
        """Note a stack that failed though each of its plans runs alone.

        Some in a row are enough, but for gates and measurements, which ask for stacks regardless.
        """
        if self._stacking is Stacking.ALWAYS:
            return
        self._faults[stack] += 1
        if self._faults[stack] >= TRIALS:
            del self._faults[stack]
            self.forbid(stack, items)

    def sound(self, stack: str) -> None:
        """Note a stack that ran."""
        self._faults.pop(stack, None)

    def known(self, upcoming: NextPlan) -> Shape | None:
        """Return the shape of a unit whose like was priced before, None for a new one."""
        return None if upcoming.plan is None else self._shapes.get(signature_of(upcoming))

    def _most_of(self, stack: str | None) -> int:
        return 0 if stack is None else self._most.get(stack, self._max_batch)

    def _table(self, shape: Shape, most: int, number: int) -> StackTable:
        call, *_, advance = shape.entries
        if self._stacking is Stacking.ALWAYS:  # as if all after the first cost nothing
            return StackTable((self.costs.predict(*call),) * most)
        advance_s, num_calls = self.costs.predict(*advance), len(shape.entries) - 1

        def price(items: int) -> float:
            return self.costs.predict(*stack_of([call] * items)) + advance_s * -(
                -items // num_calls
            )

        def known(items: int) -> bool:
            return items == 1 or self.costs.num_measured(*stack_of([call] * items)) >= TRIALS

        sizes = filter(known, range(1, most + 1))
        measured = {items: price(items) for items in sizes}
        table = stack_table(measured, price, most=most)
        if number % _RETRIED == _RETRIED - 1 and not table.trial:
            return table._replace(trial=most if number // _RETRIED % 2 else _LEAST)
        return table

    def _shape(self, upcoming: NextPlan) -> Shape | None:
        if upcoming.plan is None:
            return None
        model_id, signature = upcoming.model.card.model_id, signature_of(upcoming)
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
