"""Record what a served request computed, and compute it again through other components.

Invariant: a record is of an engine's real run, with inputs, outputs and taps as detached copies,
and a replay feeds the recorded inputs, so that an error does not grow from call to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch

from ostinato.loop.contract import Component
from ostinato.loop.observe import PlanWatch, Tap, Unit, observing
from ostinato.parity.values import Values, detached
from ostinato.work import ComponentCall


@dataclass(frozen=True, slots=True, kw_only=True)
class TapValue:
    """What a module gave: the occurrence counts the times it ran within the call, 0 first."""

    name: str
    occurrence: int
    value: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call of one unit; taps in the order in which they were computed."""

    unit: Unit
    call_id: str
    component: str
    op: str
    inputs: Values
    outputs: Values
    taps: tuple[TapValue, ...]


class ParityAligner:
    """An engine's observer that keeps what it sees; read `calls` once the requests have ended."""

    def __init__(self, keep: Callable[[Unit], bool] | None = None) -> None:
        """keep: which units are recorded (all by default); bounds the memory a record takes."""
        self._keep = keep
        self._calls: list[CallRecord] = []

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The calls in the order in which they ran."""
        return tuple(self._calls)

    @property
    def num_taps(self) -> int:
        """Count the values seen inside components."""
        return sum(len(call.taps) for call in self._calls)

    def watch(self, unit: Unit) -> PlanWatch | None:
        """Witness a unit, or let it pass."""
        if self._keep is not None and not self._keep(unit):
            return None
        return _Watch(unit, self._calls)


@dataclass(slots=True)
class _Watch:
    """Records the calls of one plan."""

    unit: Unit
    into: list[CallRecord]
    inputs: Values = field(default_factory=dict[str, object])
    taps: list[TapValue] = field(default_factory=list[TapValue])

    def started(self, call: ComponentCall, inputs: Mapping[str, object]) -> Tap:
        self.inputs = _copied(inputs)
        self.taps = []
        return tap_into(self.taps)

    def finished(self, call: ComponentCall, outputs: Mapping[str, object]) -> None:
        record = CallRecord(
            unit=self.unit,
            call_id=call.call_id,
            component=call.component,
            op=call.op,
            inputs=self.inputs,
            outputs=_copied(outputs),
            taps=tuple(self.taps),
        )
        self.into.append(record)


def tap_into(taps: list[TapValue]) -> Tap:
    """Return a tap that appends copies and counts occurrences."""
    seen: Counter[str] = Counter()

    def tap(name: str, value: torch.Tensor) -> None:
        copy = cast("torch.Tensor", detached(value))
        taps.append(TapValue(name=name, occurrence=seen[name], value=copy))
        seen[name] += 1

    return tap


def replay(
    calls: Iterable[CallRecord],
    component: Callable[[str], Component],
    convert: Callable[[CallRecord], Values] | None = None,
) -> Iterator[CallRecord]:
    """Run recorded calls again through other components, one at a time, under no_grad.

    convert: makes the inputs of a call, the recorded ones by default.
    Raises whatever a component raises for an op or input that it does not know.
    """
    for call in calls:
        inputs = call.inputs if convert is None else convert(call)
        found, taps = component(call.component), list[TapValue]()
        with torch.no_grad(), observing(found, tap_into(taps)):
            outputs = found.op(call.op)(**inputs)
        yield CallRecord(
            unit=call.unit,
            call_id=call.call_id,
            component=call.component,
            op=call.op,
            inputs=inputs,
            outputs=outputs,
            taps=tuple(taps),
        )


def _copied(values: Mapping[str, object]) -> Values:
    return {name: detached(value) for name, value in values.items()}
