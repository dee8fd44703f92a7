"""Who may say that samples are stacked: measured rules, or a tolerance that a card declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ostinato.backend.batch_rules._shapes import StackShapes


class StackRules(Protocol):
    """Says which stacks may run, and what they are worth."""

    @property
    def exact(self) -> bool:
        """Whether every sample of a stack that is allowed keeps the bits that it has alone."""
        ...

    @property
    def trials_s(self) -> float:
        """Seconds that trials of shapes took so far; no stack's own time."""
        ...

    def stacks(self, shapes: StackShapes, num_samples: int) -> bool:
        """Tell whether so many samples may run these for all at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceRules:
    """Allows every shape, in the one dtype that a card's tolerance was measured in.

    A sample of such a stack may be rounded otherwise than alone; by how much, the card declares.
    """

    dtype: torch.dtype

    @property
    def exact(self) -> bool:
        """No stack of these is held to bits."""
        return False

    @property
    def trials_s(self) -> float:
        """Nothing is tried."""
        return 0.0

    def stacks(self, shapes: StackShapes, num_samples: int) -> bool:
        """Tell whether the samples are of the dtype that was measured."""
        return shapes.dtype == self.dtype
