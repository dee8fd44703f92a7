"""The units of a class, one after the other, as the ledger is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.runtime.scheduler import NextUnit
from ostinato.runtime.simulate.profile import ClassProfile, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The units of a class in order, and what drew their durations apart."""

    profile: ClassProfile
    units: tuple[NextUnit, ...]
    spreads: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(profile: ClassProfile) -> Course:
        """Lay out the units; what remains is added up from the end."""
        stages = [stage for stage in profile.stages for _ in range(stage.count)]
        units: list[NextUnit] = []
        remaining_s = 0.0
        for stage in reversed(stages):
            remaining_s += stage.unit_s
            units.append(_next_unit(stage, remaining_s, profile.move_s))
        return Course(
            profile=profile,
            units=tuple(reversed(units)),
            spreads=tuple(stage.spread for stage in stages),
        )


def _next_unit(stage: Stage, remaining_s: float, move_s: float | None) -> NextUnit:
    return NextUnit(
        unit_s=stage.unit_s,
        remaining_s=remaining_s,
        stack=stage.stack,
        items=stage.items,
        move_s=move_s,
    )


def mixed(seed: int, index: int, unit: int, choices: Sequence[float]) -> int:
    """Draw a place in `choices` from who it is for, so that no policy changes what units take.

    The finalizer of MurmurHash3 (A. Appleby, public domain) mixes the bits.
    """
    bits = (seed * 0x9E3779B97F4A7C15 + index * 0xC2B2AE3D27D4EB4F + unit) & (2**64 - 1)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        bits = ((bits ^ bits >> 33) * factor) & (2**64 - 1)
    return (bits ^ bits >> 33) % len(choices)
