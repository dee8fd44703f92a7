"""What is reserved: nothing starts before all it needs is set aside, and all of it comes back."""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.errors import AdmissionInfeasible
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources


class Reservations:
    """Amounts by request against what the pool has; never more than it has."""

    def __init__(self, capacity: Resources = UNLIMITED) -> None:
        """Take what the pool has; `UNLIMITED` where an amount is not managed."""
        self.capacity = capacity
        self._held: dict[RequestId, Resources] = {}
        self._weights: dict[str, float] = {}  # bytes by component, for as long as it is resident
        self._room = capacity

    @property
    def room(self) -> Resources:
        """What is not reserved."""
        return self._room

    @property
    def held(self) -> Resources:
        """What is reserved, of all requests and for weights."""
        weights = Resources(memory_bytes=sum(self._weights.values()))
        return sum(self._held.values(), start=weights)

    @property
    def resident(self) -> frozenset[str]:
        """Components whose weights have their room."""
        return frozenset(self._weights)

    def of(self, request_id: RequestId) -> Resources:
        """What one request has reserved."""
        return self._held.get(request_id, Resources())

    def require_feasible(self, request_id: RequestId, need: Resources) -> None:
        """Raise AdmissionInfeasible, with numbers, for what could not fit into an empty pool."""
        beyond = [
            f"{name} {amount:,.6g} of {limit:,.6g}"
            for name, amount, limit in need.beyond(self.capacity)
        ]
        if beyond:
            raise AdmissionInfeasible(
                f"request {request_id} needs more than this engine has at all: {', '.join(beyond)};"
                " ask for a smaller size, fewer frames or steps, or give the engine more"
            )

    def reserve(self, request_id: RequestId, need: Resources) -> None:
        """Set an amount aside; the caller has seen that it fits."""
        assert request_id not in self._held, f"{request_id} has a reservation"
        assert need.fits(self._room), f"{request_id}: {need} does not fit {self._room}"
        self._held[request_id] = need
        self._settle()

    def keep(self, weights: Iterable[tuple[str, float]]) -> None:
        """Set room aside for weights, which outlive the request that needs them first."""
        self._weights.update(weights)
        self._settle()

    def drop(self, component: str) -> None:
        """Give back the room of weights that are no longer resident."""
        self._weights.pop(component, None)
        self._settle()

    def shrink(self, request_id: RequestId, need: Resources) -> None:
        """Give back what is no longer needed; an amount never grows."""
        if request_id in self._held:
            self._held[request_id] = self._held[request_id].at_most(need)
            self._settle()

    def release(self, request_id: RequestId) -> None:
        """Give back all of it; a request without a reservation is not an error."""
        if self._held.pop(request_id, None) is not None:
            self._settle()

    def _settle(self) -> None:
        # Added up anew each time: differences of floats would not come back to the start.
        idle = not self._held and not self._weights
        self._room = self.capacity if idle else self.capacity - self.held
