"""Profiles: what requests of each class take, unit by unit, measured or estimated.

A profile holds durations only, so the scheduler under the virtual clock sees what the engine's
cost model would tell it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ostinato.errors import BadInput
from ostinato.work import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`count` units of one kind, one after the other.

    unit_s: seconds of one alone, its bookkeeping included. stack: key of `Profiles.stack_s` by
    which units share a forward, None for one that runs alone. items: calls that a unit brings.
    spread: durations over unit_s as they were measured; a unit draws one of them, () for none.
    """

    name: str
    count: int
    unit_s: float
    stack: str | None = None
    items: int = 1
    spread: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassProfile:
    """The stages of a request, in order.

    need: what is reserved for it besides compute. move_s: seconds to move its state to another
    device, None where it cannot move.
    """

    stages: tuple[Stage, ...]
    need: Resources = field(default_factory=Resources)
    move_s: float | None = None

    @property
    def alone_s(self) -> float:
        """Seconds from start to end when nothing else runs."""
        return sum(stage.count * stage.unit_s for stage in self.stages)

    @property
    def num_units(self) -> int:
        """Units in all."""
        return sum(stage.count for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """The profiles of a trace's classes.

    source: where the numbers are from. stack_s: by stack key, seconds of 1, 2, ... stacked calls;
    as many as may be stacked.
    """

    source: str
    classes: dict[str, ClassProfile]
    stack_s: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])

    def of(self, request_class: str) -> ClassProfile:
        """Return one profile; raises BadInput that lists those there are."""
        found = self.classes.get(request_class)
        if found is None:
            known = ", ".join(self.classes) or "none"
            raise BadInput(f"no profile of class {request_class!r}; expected one of: {known}")
        return found

    def unstacked(self) -> Profiles:
        """Return the same where nothing shares a forward."""
        return replace(self, stack_s={})

    def stacked_s(self, key: str) -> tuple[float, ...]:
        """Return the seconds of stacks; () for what is never stacked."""
        return self.stack_s.get(key, ())

    def validate(self) -> None:
        """Raise BadInput that lists every value out of range."""
        problems = [
            f"{name}.{stage.name}: {problem}"
            for name, profile in self.classes.items()
            for stage in profile.stages
            for problem in _stage_problems(stage)
        ]
        problems += [f"{name} has no stages" for name, p in self.classes.items() if not p.stages]
        problems += [
            f"stack_s[{key!r}] is {seconds!r}; expected seconds above 0"
            for key, seconds in self.stack_s.items()
            if not all(0 < each < math.inf for each in seconds)
        ]
        if problems:
            raise BadInput(f"profiles from {self.source!r}: {'; '.join(problems)}")


def _stage_problems(stage: Stage) -> list[str]:
    problems: list[str] = []
    if stage.count < 1 or stage.items < 1:
        problems.append(f"count {stage.count} and items {stage.items} are to be at least 1")
    if not 0 < stage.unit_s < math.inf:
        problems.append(f"unit_s is {stage.unit_s!r}; expected seconds above 0")
    if not all(0 < ratio < math.inf for ratio in stage.spread):
        problems.append("spread holds a ratio that is not above 0")
    return problems
