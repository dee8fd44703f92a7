"""Draws the backgrounds: a flat colour, or a fixed soft pattern in world coordinates.

Invariant: every pattern has a period of PATTERN_PERIOD pixels on both axes, so it is seamless on
the torus, and it never moves: any shift that is measured on it is a drift of the camera.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.models.builtin.world.vocabulary import BACKGROUND_COLOUR, Background

WIDTH = 64
HEIGHT = 64
# One period is one latent patch of the codec, so that a pattern costs it a single constant.
PATTERN_PERIOD = 8
# Half the peak-to-peak contrast, 0..255: twice the noise of a 30 dB codec, a tenth of the
# smallest distance between colours.
PATTERN_AMPLITUDE = 15.0


def pattern(background: Background) -> NDArray[np.float32]:
    """Return the pattern of a background: float32 [64,64] in [-1,1]; zeros where it is flat."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32) * (2 * np.pi / PATTERN_PERIOD)
    match background:
        case Background.STRIPED:
            wave = np.cos(x + y)
        case Background.CHECKERED:
            wave = np.sin(x) * np.sin(y)
        case Background.DOTTED:
            wave = np.cos(x) + np.cos(y) - 0.5
        case Background.WAVY:
            wave = np.cos(y + 1.2 * np.sin(x))
        case _:
            return np.zeros((HEIGHT, WIDTH), np.float32)
    # A steep but smooth edge: no step that a codec would ring on.
    return np.tanh(2.5 * wave).astype(np.float32)


def backdrop(background: Background) -> NDArray[np.uint8]:
    """Return the picture of an empty background, uint8 [64,64,3]."""
    base = np.asarray(BACKGROUND_COLOUR[background], np.float32)
    picture = base + PATTERN_AMPLITUDE * pattern(background)[..., None]
    return np.rint(picture).astype(np.uint8)
