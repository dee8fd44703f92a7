"""How much more often a clip is drawn, by what it shows.

Invariant: a weight that would change nothing is refused, by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ostinato.errors import BadInput
from ostinato.models.builtin import world

Emphasis: TypeAlias = tuple[tuple[str, float], ...]

_ATTRIBUTES = tuple(
    attribute.value
    for kind in (world.Background, world.Shape, world.Colour, world.Motion)
    for attribute in kind
)


def check_emphasis(emphasis: Emphasis) -> None:
    """Raise BadInput for an attribute of no clip, one named twice, and a weight that is none."""
    faults: list[str] = []
    named = [attribute for attribute, _ in emphasis]
    for attribute, weight in emphasis:
        if attribute not in _ATTRIBUTES:
            faults.append(f"{attribute!r} is no attribute of a clip")
        if named.count(attribute) > 1:
            faults.append(f"{attribute!r} is named {named.count(attribute)} times")
        if not 0 < weight < math.inf or weight == 1:
            faults.append(f"the weight of {attribute!r} is {weight!r}")
    if faults:
        raise BadInput(
            f"emphasis: {'; '.join(dict.fromkeys(faults))}; expected positive weights, "
            f"other than 1, of attributes named once: {', '.join(map(repr, _ATTRIBUTES))}"
        )


def draw_shares(scenes: Sequence[world.Scene], emphasis: Emphasis) -> np.ndarray:
    """Return how often each scene is drawn, float64 [K], sum 1; weights multiply.

    Raises BadInput when no scene shows an attribute, or all do: its weight would change nothing.
    """
    shown = [_attributes(scene) for scene in scenes]
    weights = np.ones(len(scenes))
    for attribute, weight in emphasis:
        has = np.array([attribute in attributes for attributes in shown])
        if has.all() or not has.any():
            raise BadInput(
                f"emphasis: {int(has.sum())} of {len(scenes)} clips show {attribute!r}, so its "
                "weight would change nothing; leave it out, or make more clips"
            )
        weights[has] *= weight
    return weights / weights.sum()


def _attributes(scene: world.Scene) -> frozenset[str]:
    spec = scene.objects[0]
    return frozenset(
        (scene.background.value, spec.shape.value, spec.colour.value, spec.motion.value)
    )
