"""Measures the pattern of a background: whether it is there, and how far the camera moved.

Invariant: every pattern repeats after PATTERN_PERIOD pixels, so averaging the visible pixels of
equal phase into one period loses nothing, whatever part of the frame an object hides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ostinato.models.builtin.world.backdrop import PATTERN_PERIOD, backdrop
from ostinato.models.builtin.world.vocabulary import Background

# A pattern counts as seen with at least this share of its contrast and this likeness of spectrum.
# A blur of sigma 1.3 px leaves a third of the finest pattern.
_LEAST_STRENGTH = 0.15
_LEAST_LIKENESS = 0.8
# Only the harmonics that carry most of a pattern are registered: weaker ones are noise-prone.
_STRONG_HARMONIC = 0.5


class Registration(NamedTuple):
    """The pattern in a clip: `seen`, and its shift (x, y) since the first frame, float64 [T,2]."""

    seen: bool
    shift: NDArray[np.float64]


def register(
    frames: NDArray[np.uint8], visible: NDArray[np.bool_], background: Background
) -> Registration:
    """Find the pattern of a background in frames [T,64,64,3] where `visible` [T,64,64].

    A flat background is always seen and never shifts. Of a striped one only the shift across the
    stripes can be measured.
    """
    ideal = np.fft.fft2(_fold(backdrop(background)[None], np.ones((1, *frames.shape[1:3]), bool)))
    harmonics = _strong_harmonics(ideal[0])
    if not len(harmonics):
        return Registration(True, np.zeros((len(frames), 2)))
    spectra = np.fft.fft2(_fold(frames, visible))
    seen = _is_seen(np.abs(spectra).mean(0), np.abs(ideal[0]))
    rows, columns = harmonics.T
    phases = np.angle(spectra[:, rows, columns] * np.conj(ideal[:, rows, columns]))
    phases = np.unwrap(phases, axis=0)
    # A shift by s turns harmonic k by -2 pi k s / period.
    wavevectors = np.stack([_signed(columns), _signed(rows)], axis=1) * (2 * np.pi / PATTERN_PERIOD)
    shift = -(phases - phases[:1]) @ np.linalg.pinv(wavevectors).T
    return Registration(seen, shift)


def _fold(frames: NDArray[np.uint8], visible: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Average the visible pixels, all channels, into one period: [T,period,period], zero mean."""
    count, height, width = visible.shape
    period = PATTERN_PERIOD
    tiles = (count, height // period, period, width // period, period)
    weight = visible.reshape(tiles).sum((1, 3))
    luma = np.einsum("thwc->thw", frames, dtype=np.float64) / frames.shape[-1]
    folded = np.einsum("tipjq->tpq", (luma * visible).reshape(tiles)) / np.maximum(weight, 1)
    return folded - folded.mean((1, 2), keepdims=True)


def _strong_harmonics(spectrum: NDArray[np.complex128]) -> NDArray[np.int64]:
    """Return the (row, column) of the strong harmonics, one of each conjugate pair: int64 [K,2]."""
    size = np.abs(spectrum)
    found = np.argwhere(size > max(_STRONG_HARMONIC * size.max(), 1.0))
    signed = _signed(found)
    half = (signed[:, 0] > 0) | ((signed[:, 0] == 0) & (signed[:, 1] > 0))
    return found[half]


def _signed(index: NDArray[np.int64]) -> NDArray[np.int64]:
    return (index + PATTERN_PERIOD // 2) % PATTERN_PERIOD - PATTERN_PERIOD // 2


def _is_seen(size: NDArray[np.float64], ideal: NDArray[np.float64]) -> bool:
    overlap = float((size * ideal).sum())
    strength = overlap / float((ideal**2).sum())
    likeness = overlap / float(np.sqrt((ideal**2).sum() * (size**2).sum()) + 1e-9)
    return strength >= _LEAST_STRENGTH and likeness >= _LEAST_LIKENESS
