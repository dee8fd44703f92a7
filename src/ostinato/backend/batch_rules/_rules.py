"""The verdicts of the probe, and what follows from them for a stack of samples."""

from __future__ import annotations

import sys
from dataclasses import dataclass

# No count of rows and no multiple that the probe tried made calls agree.
NEVER = sys.maxsize
# Features of a float32 row that fill 64 bytes.
_ROW_MULTIPLE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """Verdicts of the probe, in float32.

    linear_rows: from this many rows a call on, a linear gives each row the same bits whatever else
    is in the call. It holds for inputs of a multiple of 16 features, so that every row starts on a
    boundary of 64 bytes, and for two outputs or more: a product with one column is a kernel of its
    own. activation_multiple: activations agree where the elements of a row are a multiple of this.
    Either is NEVER where nothing that was tried agrees. The rest: whether an operation of a batch
    equals that of its samples.
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
            and all(width % _ROW_MULTIPLE == 0 for width in widths)
        )
