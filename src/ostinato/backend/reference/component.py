"""A reference component: torch at its edges, float64 inside, watched on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import numpy as np
import torch

from ostinato.backend.operations import Operations
from ostinato.backend.reference.arrays import Array
from ostinato.backend.taps import Tap, TapPoint
from ostinato.card import ComponentSpec, PrecisionSpec
from ostinato.errors import InvalidCard

DTYPE = "float64"
PRECISION = PrecisionSpec(weights=DTYPE, latents=DTYPE)


class ReferenceComponent(Operations, ABC):
    """Operations in float64, and taps on the values in between, in the order they are computed."""

    def __init__(self) -> None:
        """Nobody looks."""
        self._point = TapPoint()

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Read the weights; raises InvalidCard for another precision, InvalidCheckpoint."""
        if precision != PRECISION:
            raise InvalidCard(
                f"component {spec.name!r} is the float64 reference; the card asks for weights in "
                f"{precision.weights!r} and latents in {precision.latents!r}"
            )
        return cls.read(folder, spec)

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, spec: ComponentSpec) -> Self:
        """Read the weights of a model folder; raises InvalidCheckpoint."""

    def observe(self, tap: Tap) -> AbstractContextManager[None]:
        """Call `tap` for every value of the ops that run meanwhile; it gets copies of its own."""
        return self._point.observe(tap)

    def emit(self, name: str, value: Array) -> None:
        """Show a value, under the module path and in the shape of the torch module's output."""
        for tap in self._point.taps:
            tap(name, to_tensor(value))


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor's values in float64."""
    return tensor.detach().to("cpu", torch.float64).numpy()


def to_tensor(array: Array) -> torch.Tensor:
    """Return a copy of an array as a float64 tensor."""
    return torch.tensor(np.ascontiguousarray(array), dtype=torch.float64)
