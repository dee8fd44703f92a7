"""What witnesses are told of a unit, taken down before it runs: afterwards its plans are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.runtime.running import RunningRequest
from ostinato.runtime.scheduler import Placed, UnitRecord
from ostinato.runtime.turns import Ran


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutUnit:
    """The fields of `UnitRecord` that are known beforehand."""

    unit: Placed
    tick: int
    model: str
    tenants: tuple[str, ...]
    nodes: tuple[str, ...]
    kind: str
    ops: tuple[str, ...]
    num_calls: int

    @staticmethod
    def of(unit: Placed, group: Sequence[RunningRequest], tick: int) -> AboutUnit:
        """Take down who runs what."""
        plans = [running.plan for running in group if not running.faulty]
        calls = [call for plan in plans for call in plan.calls]
        return AboutUnit(
            unit=unit,
            tick=tick,
            model=group[0].model.card.model_id,
            tenants=tuple(running.claim.tenant for running in group),
            nodes=tuple(running.node for running in group),
            kind=plans[0].kind.value if plans else "none",
            ops=tuple(dict.fromkeys(f"{call.component}.{call.op}" for call in calls)),
            num_calls=len(calls),
        )

    def record(self, ran: Ran) -> UnitRecord:
        """Return the record of the unit that has run."""
        return UnitRecord(
            tick=self.tick,
            device=self.unit.device,
            model=self.model,
            request_ids=self.unit.request_ids,
            tenants=self.tenants,
            nodes=self.nodes,
            kind=self.kind,
            ops=self.ops,
            items=self.num_calls if ran.stacked else 1,
            start_s=ran.start_s,
            end_s=ran.end_s,
            predicted_s=self.unit.predicted_s,
            device_s=ran.device_s,
            load_s=ran.load_s,
        )
