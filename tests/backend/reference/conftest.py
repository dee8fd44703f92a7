"""Arrays to compute with, and how they are compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ostinato.backend.reference.arrays import Array


@pytest.fixture
def normal() -> Callable[..., Array]:
    """Return `normal(*shape)`, standard normal float64 arrays; seeded for each test."""
    generator = np.random.default_rng(0)
    return lambda *shape: generator.standard_normal(shape)
