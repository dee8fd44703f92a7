"""Geometry of the five shapes: coverage of a pixel, area and extents.

Invariant: the renderer and the analysis share these functions, and every shape is placed by its
centroid, so a centroid measured on a mask is the position that was drawn.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ostinato.models.builtin.world.vocabulary import Shape

# Sizes in units of the radius; chosen so that the four full shapes have similar areas.
SQUARE_HALF_SIDE = 0.87
DIAMOND_HALF_DIAGONAL = 1.24
TRIANGLE_CIRCUMRADIUS = 1.25
RING_INNER = 0.55
RING_OUTER = 1.08


class Extent(NamedTuple):
    """How far a shape of radius 1 reaches from its centroid."""

    side: float
    above: float
    below: float


EXTENTS = MappingProxyType(
    {
        Shape.CIRCLE: Extent(1.0, 1.0, 1.0),
        Shape.SQUARE: Extent(SQUARE_HALF_SIDE, SQUARE_HALF_SIDE, SQUARE_HALF_SIDE),
        Shape.TRIANGLE: Extent(
            TRIANGLE_CIRCUMRADIUS * 3**0.5 / 2, TRIANGLE_CIRCUMRADIUS, TRIANGLE_CIRCUMRADIUS / 2
        ),
        Shape.DIAMOND: Extent(DIAMOND_HALF_DIAGONAL, DIAMOND_HALF_DIAGONAL, DIAMOND_HALF_DIAGONAL),
        Shape.RING: Extent(RING_OUTER, RING_OUTER, RING_OUTER),
    }
)

# Area of each shape at radius 1.
UNIT_AREA = MappingProxyType(
    {
        Shape.CIRCLE: np.pi,
        Shape.SQUARE: 4 * SQUARE_HALF_SIDE**2,
        Shape.TRIANGLE: 3 * 3**0.5 / 4 * TRIANGLE_CIRCUMRADIUS**2,
        Shape.DIAMOND: 2 * DIAMOND_HALF_DIAGONAL**2,
        Shape.RING: np.pi * (RING_OUTER**2 - RING_INNER**2),
    }
)


def coverage(
    shape: Shape,
    radius: NDArray[np.float32] | float,
    dx: NDArray[np.float32],
    dy: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return how much of the pixel at offset (dx, dy) from the centroid a shape covers, in [0, 1].

    Offsets are in pixels, y grows downward; dx, dy and radius broadcast. The edge is anti-aliased
    by the signed distance to the nearest side (positive outside): coverage = 1/2 - distance.
    """
    match shape:
        case Shape.CIRCLE:
            distance = np.sqrt(dx * dx + dy * dy) - radius
        case Shape.RING:
            half_width = radius * ((RING_OUTER - RING_INNER) / 2)
            middle = radius * ((RING_OUTER + RING_INNER) / 2)
            distance = np.abs(np.sqrt(dx * dx + dy * dy) - middle) - half_width
        case Shape.SQUARE:
            distance = np.maximum(np.abs(dx), np.abs(dy)) - radius * SQUARE_HALF_SIDE
        case Shape.DIAMOND:
            distance = (np.abs(dx) + np.abs(dy) - radius * DIAMOND_HALF_DIAGONAL) * 0.5**0.5
        case Shape.TRIANGLE:
            inradius = radius * (TRIANGLE_CIRCUMRADIUS / 2)
            slanted = np.abs(dx) * (3**0.5 / 2) - dy * 0.5
            distance = np.maximum(slanted, dy) - inradius
    return np.clip(0.5 - distance, 0.0, 1.0)
