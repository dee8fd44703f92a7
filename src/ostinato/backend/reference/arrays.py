"""Words that the float64 reference shares, in numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

Emit: TypeAlias = Callable[[str, Array], None]
"""Called with the module path and the value that the module of that path gives."""


class Affine(NamedTuple):
    """Weight and bias of a linear, a convolution or a norm; bias None where it has none."""

    weight: Array
    bias: Array | None


class KeyValue(NamedTuple):
    """Keys and values that attention reads, each [B,L,N,E]."""

    key: Array
    value: Array


def silent(name: str, value: Array) -> None:
    """Take a value that nobody watches."""
