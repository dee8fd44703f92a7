"""What a request may ask of the scheduler, besides work: its tenant, priority and deadline."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ostinato.errors import DeadlineExceeded
from ostinato.tasks import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Fixed when the request is submitted.

    arrival: order of submission. arrived_s, deadline_s: instants of `time.monotonic`.
    """

    tenant: str
    priority: int
    arrival: int
    arrived_s: float
    deadline_s: float | None

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_s is not None and now > self.deadline_s

    def late(self, request_id: RequestId, progress: str) -> DeadlineExceeded:
        """Return the failure of a request that has passed its deadline."""
        return DeadlineExceeded(f"request {request_id} passed its deadline {progress}")

    def hopeless(
        self, request_id: RequestId, remaining_s: float, progress: str
    ) -> DeadlineExceeded:
        """Return the failure of a request that would pass its deadline even alone."""
        left_s = (self.deadline_s or 0.0) - time.monotonic()
        return DeadlineExceeded(
            f"request {request_id} was given up {progress}: {left_s:.3g} s are left to its "
            f"deadline and it needs {remaining_s:.3g} s more; ask for less, or allow more"
        )
