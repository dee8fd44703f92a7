"""What a request needs while it runs, and what a pool has: one vector, compared field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Amounts, each at least 0.

    compute_s: predicted device-seconds of work that is not done yet. memory_bytes: what is
    resident for the request plus the worst peak of its remaining units. pages: K/V pages.
    transfer_bytes: what has to move between devices or processes. sink_bytes: finished output
    that waits to be fetched.
    """

    compute_s: float = 0.0
    memory_bytes: float = 0.0
    pages: float = 0.0
    transfer_bytes: float = 0.0
    sink_bytes: float = 0.0

    def __add__(self, other: Resources) -> Resources:
        return self._with(other, 1.0)

    def __sub__(self, other: Resources) -> Resources:
        return self._with(other, -1.0)

    def fits(self, room: Resources) -> bool:
        """Whether every amount is within `room`."""
        return not any(True for _ in self.beyond(room))

    def beyond(self, room: Resources) -> Iterator[tuple[str, float, float]]:
        """Yield (name, amount, room) of every amount that is more than `room` has."""
        for field in fields(self):
            amount, limit = getattr(self, field.name), getattr(room, field.name)
            if amount > limit:
                yield field.name, amount, limit

    def at_most(self, other: Resources) -> Resources:
        """Return the lesser of each amount."""
        return Resources(
            compute_s=min(self.compute_s, other.compute_s),
            memory_bytes=min(self.memory_bytes, other.memory_bytes),
            pages=min(self.pages, other.pages),
            transfer_bytes=min(self.transfer_bytes, other.transfer_bytes),
            sink_bytes=min(self.sink_bytes, other.sink_bytes),
        )

    def _with(self, other: Resources, sign: float) -> Resources:
        return Resources(
            compute_s=self.compute_s + sign * other.compute_s,
            memory_bytes=self.memory_bytes + sign * other.memory_bytes,
            pages=self.pages + sign * other.pages,
            transfer_bytes=self.transfer_bytes + sign * other.transfer_bytes,
            sink_bytes=self.sink_bytes + sign * other.sink_bytes,
        )


UNLIMITED = Resources(
    compute_s=float("inf"),
    memory_bytes=float("inf"),
    pages=float("inf"),
    transfer_bytes=float("inf"),
    sink_bytes=float("inf"),
)
