"""What this processor needs so that a batch of N has the bits of N calls of one.

Measured, not assumed: the verdicts differ between processors and builds of torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """Verdicts of the probe, in float32.

    linear_rows: from this many rows a call on, a linear gives each row the same bits whatever else
    is in the call. activation_multiple: activations agree where the elements of a row are a
    multiple of this. The rest: whether an operation of a batch equals that of its samples.
    """

    linear_rows: int
    activation_multiple: int
    attention: bool
    norms: bool
    conv2d: bool
    conv3d: bool

    def stacks(self, *, rows: int, widths: tuple[int, ...]) -> bool:
        """Tell whether transformer blocks may be stacked: `rows` of each sample, these widths."""
        return (
            rows >= self.linear_rows
            and self.attention
            and self.norms
            and all(width % self.activation_multiple == 0 for width in widths)
        )


def probe_batch_rules() -> BatchRules:
    """Measure the rules on this processor, at its current thread count; takes under a second."""
    raise NotImplementedError
