"""Read a loop's card: roles and options, refused by name when they are not what the loop takes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from ostinato.card import LoopSpec, Scalar
from ostinato.errors import InvalidCard

E = TypeVar("E", bound=StrEnum)


def bound(
    spec: LoopSpec, *, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> Mapping[str, str]:
    """Return the binding of a loop; raises InvalidCard for a role that is missing or unknown."""
    missing, unknown = required - set(spec.binds), set(spec.binds) - required - optional
    if missing or unknown:
        raise InvalidCard(
            f"loop {spec.name!r} binds {sorted(spec.binds)}; it needs {sorted(required)}"
            + (f" and takes {sorted(optional)}" if optional else "")
        )
    return spec.binds


def options(
    spec: LoopSpec, *, required: frozenset[str], defaults: Mapping[str, Scalar] | None = None
) -> dict[str, Scalar]:
    """Return every option, defaults filled in; raises InvalidCard for missing or unknown ones."""
    given = {**(defaults or {}), **spec.options}
    missing, unknown = required - set(given), set(given) - required - set(defaults or {})
    if missing or unknown:
        takes = sorted(required | set(defaults or {}))
        raise InvalidCard(
            f"loop {spec.name!r} has options {sorted(spec.options)}; it takes {takes}"
            + (f", and {sorted(missing)} must be given" if missing else "")
        )
    return given


def whole(spec: LoopSpec, name: str, value: Scalar, *, minimum: int) -> int:
    """Return a whole number; raises InvalidCard."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidCard(
            f"loop {spec.name!r}: {name} is {value!r}; expected a whole number of at least "
            f"{minimum}"
        )
    return value


def member(spec: LoopSpec, name: str, value: Scalar, valid: tuple[E, ...]) -> E:
    """Return one of the values that the loop serves; raises InvalidCard."""
    for item in valid:
        if value == item.value:
            return item
    names = ", ".join(item.value for item in valid)
    raise InvalidCard(f"loop {spec.name!r}: {name} is {value!r}; served: {names}")
