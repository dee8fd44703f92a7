"""The timeline: what ran when on which device, and what each request waited for.

Written in the Trace Event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
Source: "Trace Event Format", Google, https://docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Instants and durations there are microseconds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ostinato.media import replacing
from ostinato.runtime.scheduler import Decision, Outcome, Snapshot, UnitRecord, Waiting
from ostinato.runtime.witness.several import Bystander
from ostinato.tasks import RequestId
from ostinato.wire import encode

NUM_UNITS = 100_000  # about 60 MB of JSON
NUM_REQUESTS = 10_000

_DEVICES, _REQUESTS = 1, 2  # the format groups tracks by process; these are ours
_Event = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """What is known of one request: instants of the monotonic clock, None for not yet."""

    request_id: RequestId
    model: str
    tenant: str
    arrived_s: float
    admitted_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None


class Timeline(Bystander):
    """Keeps the latest units and requests; `save` may be called from any thread.

    The trace has one track a device, whose slices are the units with what was predicted and what
    they took, and one track a request, from its submission to its end, in which the wait for
    admission and its units are slices. Instants count from the earliest that is kept.
    """

    def __init__(self, *, num_units: int = NUM_UNITS, num_requests: int = NUM_REQUESTS) -> None:
        """Keep so many units and so many requests that have ended; those that run are all kept."""
        self._lock = threading.Lock()
        self._units: deque[UnitRecord] = deque(maxlen=num_units)
        self._running: dict[RequestId, _Life] = {}
        self._past: deque[_Life] = deque(maxlen=num_requests)

    def submitted(self, waiting: Waiting, model: str) -> None:
        """Begin a request's track."""
        life = _Life(
            request_id=waiting.request_id,
            model=model,
            tenant=waiting.tenant,
            arrived_s=waiting.arrived_s,
        )
        with self._lock:
            self._running[waiting.request_id] = life

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        """End the wait of those that were admitted."""
        with self._lock:
            for request_id in decision.admitted:
                life = self._running[request_id]
                self._running[request_id] = replace(life, admitted_s=snapshot.now)

    def executed(self, unit: UnitRecord) -> None:
        """Keep a unit."""
        with self._lock:
            self._units.append(unit)

    def ended(self, request_id: RequestId, outcome: Outcome, now: float) -> None:
        """End a request's track."""
        with self._lock:
            life = self._running.pop(request_id, None)
            if life is not None:
                self._past.append(replace(life, ended_s=now, outcome=outcome))

    def to_json(self) -> bytes:
        """Return the trace; a request that has not ended ends with the latest instant known."""
        with self._lock:
            units, lives = tuple(self._units), (*self._past, *self._running.values())
        events = _Trace(units, lives).events()
        return encode({"displayTimeUnit": "ms", "traceEvents": list(events)})

    def save(self, path: str | Path) -> None:
        """Write the trace in one step; raises OutputNotWritten."""
        with replacing(Path(path)) as partial:
            partial.write_bytes(self.to_json())


class _Trace:
    """Turns what was kept into events."""

    def __init__(self, units: Sequence[UnitRecord], lives: Sequence[_Life]) -> None:
        self._units = units
        self._lives = lives
        begins = [*(unit.start_s for unit in units), *(life.arrived_s for life in lives)]
        ends = [unit.end_s for unit in units]
        for life in lives:
            ends += [t for t in (life.arrived_s, life.admitted_s, life.ended_s) if t is not None]
        self._origin_s = min(begins, default=0.0)
        self._latest_s = max(ends, default=0.0)

    def events(self) -> Iterator[_Event]:
        yield from _named(_DEVICES, "ostinato: devices")
        yield from _named(_REQUESTS, "ostinato: requests")
        for device in sorted({unit.device for unit in self._units}):
            yield from _named(_DEVICES, f"device {device}", tid=device)
        turns: dict[RequestId, list[tuple[UnitRecord, str]]] = {}
        for unit in self._units:
            yield self._unit(unit)
            for request_id, node in zip(unit.request_ids, unit.nodes, strict=True):
                turns.setdefault(request_id, []).append((unit, node))
        for life in self._lives:
            yield from self._life(life, turns.get(life.request_id, ()))

    def _unit(self, unit: UnitRecord) -> _Event:
        begin, end = self._us(unit.start_s), self._us(unit.end_s)
        return {
            "ph": "X",
            "name": " + ".join(unit.ops) or unit.kind,
            "cat": unit.kind,
            "pid": _DEVICES,
            "tid": unit.device,
            "ts": begin,
            "dur": round(end - begin, 3),
            "args": {
                "model": unit.model,
                "tick": unit.tick,
                "requests": unit.request_ids,
                "tenants": unit.tenants,
                "nodes": unit.nodes,
                "items": unit.items,
                "predicted_s": unit.predicted_s,
                "device_s": unit.device_s,
                "load_s": unit.load_s,
            },
        }

    def _life(self, life: _Life, turns: Sequence[tuple[UnitRecord, str]]) -> Iterator[_Event]:
        """Yield a request's track from left to right: of equal instants, readers keep the order."""
        ended_s = self._latest_s if life.ended_s is None else life.ended_s
        admitted_s = ended_s if life.admitted_s is None else life.admitted_s
        begin = {
            "ph": "b",
            "name": f"request {life.request_id}",
            "args": {
                "model": life.model,
                "tenant": life.tenant,
                "outcome": "running" if life.outcome is None else life.outcome,
            },
        }
        slices = [("waits for admission", life.arrived_s, admitted_s)]
        slices += [(node, unit.start_s, unit.end_s) for unit, node in turns]
        track = {"cat": "request", "id": life.request_id, "pid": _REQUESTS, "tid": 0}
        yield {**begin, "ts": self._us(life.arrived_s), **track}
        for name, start_s, end_s in slices:
            yield {"ph": "b", "name": name, "ts": self._us(start_s), **track}
            yield {"ph": "e", "name": name, "ts": self._us(end_s), **track}
        end_s = max(ended_s, slices[-1][2])  # an end is told with the tick's instant
        yield {"ph": "e", "name": begin["name"], "ts": self._us(end_s), **track}

    def _us(self, instant_s: float) -> float:
        return round(1e6 * (instant_s - self._origin_s), 3)  # the format's finest: nanoseconds


def _named(pid: int, name: str, tid: int | None = None) -> Iterator[_Event]:
    kind = "process_name" if tid is None else "thread_name"
    yield {"ph": "M", "name": kind, "pid": pid, "tid": tid or 0, "args": {"name": name}}
    order = "process_sort_index" if tid is None else "thread_sort_index"
    index = pid if tid is None else tid
    yield {"ph": "M", "name": order, "pid": pid, "tid": tid or 0, "args": {"sort_index": index}}
