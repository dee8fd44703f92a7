"""UniPC with B(h) = e^h - 1 ("bh2") on a flow-matching schedule, in float64.

Source: https://arxiv.org/abs/2302.04867, algorithms 5 to 8, in the data-prediction form, and with
the choices of diffusers' UniPCMultistepScheduler (order two predicts and order one corrects with
weight one half; fewer orders at the start and at the end). alpha = 1 - sigma, lambda = log(alpha /
sigma).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.backend.reference.arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class UniPCMemory:
    """What one trajectory remembers between two steps.

    clean: predictions of x0, oldest first, at most `solver_order`. corrected: the sample that the
    latest step started from, after its correction; None before the first step. order: the order
    that the latest step predicted with. step: steps taken.
    """

    clean: tuple[Array, ...] = ()
    corrected: Array | None = None
    order: int = 0
    step: int = 0


def unipc_step(
    x: Array, velocity: Array, sigmas: Array, memory: UniPCMemory, solver_order: int = 2
) -> tuple[Array, UniPCMemory]:
    """Correct x [B,...] at sigmas[step] by what the network says there, then predict the next.

    sigmas: [n + 1], falling, below 1, the last 0.
    """
    step, num_steps = memory.step, len(sigmas) - 1
    clean = x - sigmas[step] * velocity
    if memory.corrected is not None:
        x = _correct(memory, clean, sigmas)
    order = min(solver_order, num_steps - step, len(memory.clean) + 1)
    history = (*memory.clean, clean)[-solver_order:]
    following = UniPCMemory(clean=history, corrected=x, order=order, step=step + 1)
    return _predict(x, history, sigmas, step, order), following


def _predict(x: Array, clean: tuple[Array, ...], sigmas: Array, step: int, order: int) -> Array:
    """UniP: from sigmas[step] to sigmas[step + 1], with the differences of earlier predictions."""
    newest, sigma, sigma_next = clean[-1], sigmas[step], sigmas[step + 1]
    if sigma_next == 0.0:
        assert order == 1, "the last step has order one, whose limit at sigma 0 is the prediction"
        return newest
    h = _log_snr(sigma_next) - _log_snr(sigma)
    ratios, slopes = _differences(clean, newest, sigmas, step, order, h)
    moved = sigma_next / sigma * x - (1.0 - sigma_next) * np.expm1(-h) * newest
    if order == 1:
        return moved
    weights = np.array([0.5]) if order == 2 else _weights(ratios, h, order - 1)
    change = sum((w * s for w, s in zip(weights, slopes, strict=True)), np.zeros_like(x))
    return moved - (1.0 - sigma_next) * np.expm1(-h) * change


def _correct(memory: UniPCMemory, clean: Array, sigmas: Array) -> Array:
    """UniC: repeat the latest step, now that its end's prediction `clean` is known."""
    assert memory.corrected is not None
    step, newest, order = memory.step - 1, memory.clean[-1], memory.order
    sigma, sigma_next = sigmas[step], sigmas[step + 1]
    h = _log_snr(sigma_next) - _log_snr(sigma)
    ratios, slopes = _differences(memory.clean, newest, sigmas, step, order, h)
    slopes.append(clean - newest)
    weights = np.array([0.5]) if order == 1 else _weights([*ratios, 1.0], h, order)
    change = sum((w * s for w, s in zip(weights, slopes, strict=True)), np.zeros_like(clean))
    moved = sigma_next / sigma * memory.corrected - (1.0 - sigma_next) * np.expm1(-h) * newest
    return moved - (1.0 - sigma_next) * np.expm1(-h) * change


def _differences(
    clean: tuple[Array, ...], newest: Array, sigmas: Array, step: int, order: int, h: float
) -> tuple[list[float], list[Array]]:
    """Return, for each earlier prediction in use, r_k = (lambda_k - lambda_0) / h and its slope."""
    start = _log_snr(sigmas[step])
    ratios = [(_log_snr(sigmas[step - back]) - start) / h for back in range(1, order)]
    slopes = [(clean[-1 - back] - newest) / ratio for back, ratio in enumerate(ratios, start=1)]
    return ratios, slopes


def _weights(ratios: list[float], h: float, count: int) -> Array:
    """Solve R rho = b / B(h): rows r^k, right-hand sides (k + 1)! phi_(k+2)(-h) (-h) / B(h)."""
    minus_h = -h
    rows = np.stack([np.array(ratios[:count]) ** power for power in range(count)])
    phi, factorial, right = np.expm1(minus_h) / minus_h - 1.0, 1.0, []
    for power in range(1, count + 1):
        right.append(phi * factorial / np.expm1(minus_h))
        factorial *= power + 1
        phi = phi / minus_h - 1.0 / factorial
    return np.linalg.solve(rows, np.array(right))


def _log_snr(sigma: float) -> float:
    return float(np.log(1.0 - sigma) - np.log(sigma))
