"""Metrics for Prometheus: queue, requests, units, device-seconds, memory; one registry a witness.

Names follow https://prometheus.io/docs/practices/naming: base units, `_total` for what only grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostinato.runtime.scheduler import Decision, Level, Outcome, Snapshot, UnitRecord, Waiting
from ostinato.runtime.witness._series import Gauges, Series
from ostinato.tasks import RequestId

MAX_TENANTS = 100
OTHER_TENANTS = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """A request that has not ended; items: calls that its latest unit brought into a stack."""

    model: str
    tenant: str
    arrived_s: float
    begun: bool = False
    items: int = 1


class Metrics:
    """Counts for Prometheus what the scheduler tells; `text` may be called from any thread.

    Only the first `max_tenants` tenants have series of their own, later ones share `other`: a
    database keeps every series that it once saw.
    """

    def __init__(self, *, max_tenants: int = MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        self._present: dict[RequestId, _Present] = {}
        self._gauges = Gauges()
        self._series = Series(self._gauges)

    def text(self) -> str:
        """Return all series in Prometheus's text format, version 0.0.4."""
        return self._series.text()

    def submitted(self, waiting: Waiting, model: str) -> None:
        """Count a request that waits."""
        tenant = self._known(waiting.tenant)
        self._present[waiting.request_id] = _Present(
            model=model, tenant=tenant, arrived_s=waiting.arrived_s
        )
        self._gauges.waiting.add(waiting.request_id)
        self._series.submitted.labels(model=model, tenant=tenant).inc()

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        """Time the waits that end, and see whose units begin."""
        for request_id in decision.admitted:
            present = self._present[request_id]
            wait_s = snapshot.now - present.arrived_s
            self._series.admission_wait_s.labels(present.model).observe(wait_s)
            self._gauges.waiting.discard(request_id)
            self._gauges.admitted.add(request_id)
        placed = {request_id for unit in decision.units for request_id in unit.request_ids}
        for ready in snapshot.ready:
            if ready.request_id in placed:
                present = self._present[ready.request_id]
                self._present[ready.request_id] = replace(present, items=ready.items)
        self._gauges.running |= placed

    def executed(self, unit: UnitRecord) -> None:
        """Count a unit, and charge its device-seconds by the calls that each request brought."""
        here = [self._present[name] for name in unit.request_ids if name in self._present]
        items = sum(present.items for present in here)
        for present in here:
            part = unit.device_s * present.items / items
            self._series.device_s.labels(model=unit.model, tenant=present.tenant).inc(part)
        for request_id in unit.request_ids:
            self._begin(request_id, unit.start_s)
            self._gauges.running.discard(request_id)
        self._series.unit_s.labels(unit.kind).observe(unit.device_s)
        self._series.unit_items.labels(unit.kind).observe(unit.items)
        self._series.load_s.labels(unit.model).inc(unit.load_s)
        if unit.device_s > 0:
            error = abs(unit.predicted_s / unit.device_s - 1)
            self._series.prediction_error.labels(unit.kind).observe(error)

    def ended(self, request_id: RequestId, outcome: Outcome, now: float) -> None:
        """Count an end, and time the request; one that was refused never waited."""
        present = self._present.pop(request_id, None)
        if present is None:
            return
        for requests in (self._gauges.waiting, self._gauges.admitted, self._gauges.running):
            requests.discard(request_id)
        self._series.ended.labels(present.model, present.tenant, outcome.value).inc()
        request_s = now - present.arrived_s
        self._series.request_s.labels(present.model, outcome.value).observe(request_s)

    def level(self, level: Level) -> None:
        """Keep how full the engine is."""
        self._gauges.level = level

    def _begin(self, request_id: RequestId, start_s: float) -> None:
        present = self._present.get(request_id)
        if present is not None and not present.begun:
            wait_s = start_s - present.arrived_s
            self._series.first_unit_wait_s.labels(present.model).observe(wait_s)
            self._present[request_id] = replace(present, begun=True)

    def _known(self, tenant: str) -> str:
        if tenant not in self._tenants:
            if len(self._tenants) >= self._max_tenants:
                return OTHER_TENANTS
            self._tenants.add(tenant)
        return tenant
