"""What is reserved: nothing starts before all it needs is set aside, and all of it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import fsum, inf

from ostinato.errors import AdmissionInfeasible
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, Resources

# A decision takes one need after the other from the room, so its last bits may differ from ours.
_ROUNDING = 1e-9


class Reservations:
    """Amounts by request against what the pool has; never more than it has."""

    def __init__(self, capacity: Resources = UNLIMITED) -> None:
        """Take what the pool has; `UNLIMITED` where an amount is not managed."""
        self.capacity = capacity
        self._held: dict[RequestId, Resources] = {}
        # Bytes by component, for as long as it is resident; who was needed latest comes last.
        self._weights: dict[str, float] = {}
        self._users: dict[RequestId, tuple[str, ...]] = {}
        self._room: Resources | None = capacity  # None: to be added up when it is asked for

    @property
    def room(self) -> Resources:
        """What is not reserved."""
        if self._room is None:
            held, capacity = self._held.values(), self.capacity
            self._room = Resources(
                compute_s=_left(capacity.compute_s, (each.compute_s for each in held)),
                memory_bytes=_left(
                    capacity.memory_bytes,
                    chain((each.memory_bytes for each in held), self._weights.values()),
                ),
                pages=_left(capacity.pages, (each.pages for each in held)),
                transfer_bytes=_left(
                    capacity.transfer_bytes, (each.transfer_bytes for each in held)
                ),
                sink_bytes=_left(capacity.sink_bytes, (each.sink_bytes for each in held)),
            )
        return self._room

    @property
    def held(self) -> Resources:
        """What is reserved, of all requests and for weights."""
        held = self._held.values()
        return Resources(
            compute_s=fsum(each.compute_s for each in held),
            memory_bytes=fsum([*(each.memory_bytes for each in held), *self._weights.values()]),
            pages=fsum(each.pages for each in held),
            transfer_bytes=fsum(each.transfer_bytes for each in held),
            sink_bytes=fsum(each.sink_bytes for each in held),
        )

    @property
    def weights(self) -> dict[str, float]:
        """Bytes of the weights that have their room, by component."""
        return dict(self._weights)

    @property
    def resident(self) -> frozenset[str]:
        """Components whose weights have their room."""
        return frozenset(self._weights)

    @property
    def idle_weights(self) -> tuple[tuple[str, float], ...]:
        """(component, bytes) of weights that no request needs, the longest unused first."""
        used = frozenset(chain.from_iterable(self._users.values()))
        return tuple(each for each in self._weights.items() if each[0] not in used)

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
        for name, amount, limit in need.beyond(self.room):
            excess = (amount - limit) / getattr(self.capacity, name)
            assert excess < _ROUNDING, f"{request_id}: {amount} of {name} does not fit {limit}"
        self._held[request_id] = need
        self._room = None

    def keep(self, request_id: RequestId, weights: Sequence[tuple[str, float]]) -> None:
        """Set room aside for what a request runs on; weights outlive who needs them first."""
        for component, size in weights:
            self._weights.pop(component, None)
            self._weights[component] = size
        self._users[request_id] = tuple(component for component, _ in weights)
        self._room = None

    def drop(self, component: str) -> None:
        """Give back the room of weights that are no longer resident."""
        self._weights.pop(component, None)
        self._room = None

    def shrink(self, request_id: RequestId, need: Resources) -> None:
        """Give back what is no longer needed; an amount never grows."""
        if request_id in self._held:
            self._held[request_id] = self._held[request_id].at_most(need)
            self._room = None

    def spend(self, request_id: RequestId, compute_s: float) -> None:
        """Give back device-seconds that are spent: `compute_s` of them are still to come."""
        held = self._held.get(request_id)
        if held is not None and compute_s < held.compute_s:
            self._held[request_id] = Resources(
                compute_s=compute_s,
                memory_bytes=held.memory_bytes,
                pages=held.pages,
                transfer_bytes=held.transfer_bytes,
                sink_bytes=held.sink_bytes,
            )
            self._room = None

    def release(self, request_id: RequestId) -> None:
        """Give back all of it; a request without a reservation is not an error."""
        self._users.pop(request_id, None)
        if self._held.pop(request_id, None) is not None:
            self._room = None


def _left(limit: float, amounts: Iterable[float]) -> float:
    """Return what is left of a limit; added up anew and exactly, so it comes back to the limit."""
    return limit if limit == inf else max(0.0, limit - fsum(amounts))
