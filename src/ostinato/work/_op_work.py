"""What is priced and measured: the key of a call, its estimated work, a device's assumed rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_SAME = 1e-6  # relative; works closer than this are one
_MOST_WORK = 1e30  # operations or bytes; more is no estimate


class CostKey(NamedTuple):
    """What a measurement is of.

    component: `model_id/component`. form: the shapes and scalars of a call, as text. items: calls
    that were stacked into one.
    """

    component: str
    op: str
    form: str
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """An estimate of one call: floating-point operations, bytes of weights and of activations."""

    flops: float
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0

    def times(self, items: int) -> OpWork:
        """Return the work of `items` stacked calls: weights are read once."""
        return OpWork(
            flops=items * self.flops,
            weight_bytes=self.weight_bytes,
            activation_bytes=items * self.activation_bytes,
        )

    @property
    def num_bytes(self) -> float:
        """Bytes that move."""
        return self.weight_bytes + self.activation_bytes

    def resembles(self, other: OpWork) -> bool:
        """Whether two estimates are the same but for rounding."""
        return math.isclose(self.flops, other.flops, rel_tol=_SAME) and math.isclose(
            self.num_bytes, other.num_bytes, rel_tol=_SAME
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a device is assumed to do before anything was measured on it.

    flops_per_s, bytes_per_s: sustained. overhead_s: seconds of a call that does nothing.
    """

    flops_per_s: float = 5e10
    bytes_per_s: float = 1e10
    overhead_s: float = 1e-4

    def seconds(self, work: OpWork) -> float:
        """Return the estimate; operations and bytes do not overlap."""
        return self.overhead_s + work.flops / self.flops_per_s + work.num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is kept of one key: its work and its last `WINDOW` durations in seconds."""

    key: CostKey
    work: OpWork
    seconds: tuple[float, ...]


def sound(work: OpWork) -> OpWork:
    """Return an estimate that can be computed with: what is not an amount counts as nothing."""
    amounts = (work.flops, work.weight_bytes, work.activation_bytes)
    if all(amount == 0.0 or 1.0 <= amount <= _MOST_WORK for amount in amounts):
        return work
    flops, weights, activations = (
        min(amount, _MOST_WORK) if amount >= 1.0 else 0.0 for amount in amounts
    )
    return OpWork(flops=flops, weight_bytes=weights, activation_bytes=activations)
