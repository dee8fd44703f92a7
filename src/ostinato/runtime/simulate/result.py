"""What a run of a trace left behind, simulated or measured: one record a request, one a service."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ostinato.runtime.scheduler import Decision


class Ending(StrEnum):
    """How a request ended.

    late: stopped at a unit boundary past its deadline. hopeless: given up by the policy. refused:
    it could never have been admitted. failed: only in a measured run.
    """

    FINISHED = "finished"
    LATE = "late"
    HOPELESS = "hopeless"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request; instants are seconds from the start of the run.

    alone_s: what it takes when nothing else runs. started_s: None when no unit ran. device_s:
    what its units cost, its part of those that it shared.
    """

    index: int
    request_class: str
    tenant: str
    alone_s: float
    arrived_s: float
    started_s: float | None
    ended_s: float
    deadline_s: float | None
    device_s: float
    ending: Ending

    @property
    def latency_s(self) -> float:
        """Seconds from arrival to end."""
        return self.ended_s - self.arrived_s

    @property
    def on_time(self) -> bool:
        """Whether it finished, and by its deadline if it has one."""
        in_time = self.deadline_s is None or self.ended_s <= self.deadline_s
        return self.ending is Ending.FINISHED and in_time


class Service(NamedTuple):
    """Device-seconds that a tenant was charged for, over an interval."""

    tenant: str
    start_s: float
    end_s: float
    device_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of a trace. stacked: by items in a unit, how many units had them."""

    requests: tuple[RequestRecord, ...]
    services: tuple[Service, ...]
    stacked: dict[int, int]
    num_devices: int

    @property
    def makespan_s(self) -> float:
        """Seconds from the first arrival to the last end."""
        if not self.requests:
            return 0.0
        first = min(request.arrived_s for request in self.requests)
        return max(request.ended_s for request in self.requests) - first


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """A simulated run and the decisions that made it: given back to `replay`, they repeat it."""

    run: RunRecord
    decisions: tuple[Decision, ...]
