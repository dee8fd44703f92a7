"""The verdicts of the probe, and what follows from them for a stack of samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ostinato.backend.batch_rules._shapes import StackShapes, Trials

# Features of a float32 row that fill 64 bytes.
_ROW_MULTIPLE = 16
_MEASURED = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """Verdicts of the probe, in float32; of another dtype they say nothing, and allow nothing.

    linear_rows: from this many rows a call on, a linear gives each row the same bits whatever else
    is in the call. It holds for inputs of a multiple of 16 features, so that every row starts on a
    boundary of 64 bytes, and for two outputs or more: a product with one column is a kernel of its
    own. activation_multiple: activations agree where the elements of a row are a multiple of this.
    Either is NEVER where nothing that was tried agrees. attention, norms: whether a batch of them
    equals its samples.

    trials: tries the shapes of a model at which the rules allow a stack; None takes the rules at
    their word. Convolutions have no rule: they run sample by sample.
    """

    linear_rows: int
    activation_multiple: int
    attention: bool
    norms: bool
    trials: Trials | None = field(default=None, compare=False, repr=False)

    @property
    def exact(self) -> bool:
        """What they allow keeps its bits."""
        return True

    @property
    def trials_s(self) -> float:
        """Seconds that trials of shapes took so far."""
        return 0.0 if self.trials is None else self.trials.spent_s

    def stacks(self, shapes: StackShapes, num_samples: int) -> bool:
        """Tell whether so many samples keep their bits when these are run for all at once.

        Shapes that the rules allow are tried the first time.
        """
        if not self._allow(shapes):
            return False
        return self.trials is None or self.trials.agree(shapes, num_samples)

    def _allow(self, shapes: StackShapes) -> bool:
        return (
            shapes.dtype == _MEASURED
            and all(rows >= self.linear_rows for rows, _ in shapes.linears)
            and all(shape.in_features % _ROW_MULTIPLE == 0 for _, shape in shapes.linears)
            and all(shape.out_features > 1 for _, shape in shapes.linears)
            and (self.attention or not shapes.attentions)
            and (self.norms or not shapes.norms)
            and all(width % self.activation_multiple == 0 for _, width in shapes.activations)
        )
