"""Runs that make the built-in model."""

from __future__ import annotations

from ostinato.training.config import TrainingConfig


def builtin_base() -> TrainingConfig:
    """Return the run that makes the weights that ship: about 70 minutes on one core."""
    return TrainingConfig(name="builtin-base", steps=14_000, compile=True)
