"""A reference component: torch at its edges, float64 inside, watched on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch

from ostinato.backend.reference.arrays import Array
from ostinato.card import ComponentSpec, PrecisionSpec
from ostinato.errors import InvalidCard, InvalidPlan

Op: TypeAlias = Callable[..., Mapping[str, object]]

Tap: TypeAlias = Callable[[str, torch.Tensor], None]
"""Called with a module path and a float64 tensor of the shape that the torch module gives."""

DTYPE = "float64"
PRECISION = PrecisionSpec(weights=DTYPE, latents=DTYPE)


class ReferenceComponent:
    """Named operations, and taps on the values in between, in the order they are computed."""

    def __init__(self, ops: Mapping[str, Op]) -> None:
        """Take the operations by name."""
        self._ops = MappingProxyType(dict(ops))
        self._taps: tuple[Tap, ...] = ()

    def op(self, name: str) -> Op:
        """Return an operation; raises InvalidPlan with the valid names."""
        if name not in self._ops:
            raise InvalidPlan(
                f"{type(self).__name__} has no op {name!r}; valid: {sorted(self._ops)}"
            )
        return self._ops[name]

    @contextmanager
    def observe(self, tap: Tap) -> Iterator[None]:
        """Call `tap` for every value of the ops that run meanwhile; it gets copies of its own."""
        before = self._taps
        self._taps = (*before, tap)
        try:
            yield
        finally:
            self._taps = before

    def emit(self, name: str, value: Array) -> None:
        """Show a value to whoever watches."""
        for tap in self._taps:
            tap(name, to_tensor(value))


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor's values in float64."""
    return tensor.detach().to("cpu", torch.float64).numpy()


def to_tensor(array: Array) -> torch.Tensor:
    """Return a copy of an array as a float64 tensor."""
    return torch.tensor(np.ascontiguousarray(array), dtype=torch.float64)


def require_reference(spec: ComponentSpec, precision: PrecisionSpec) -> None:
    """Refuse a card that asks the reference for another precision; raises InvalidCard."""
    if precision != PRECISION:
        raise InvalidCard(
            f"component {spec.name!r} is the float64 reference; the card asks for weights in "
            f"{precision.weights!r} and latents in {precision.latents!r}"
        )
