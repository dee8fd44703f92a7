"""Read the sizes of a network from its JSON configuration, each by the type that it must have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TypeGuard, cast

from ostinato.backend.checkpoint import read_config
from ostinato.errors import InvalidCheckpoint


class Settings:
    """One configuration file; every getter raises InvalidCheckpoint that names the setting."""

    def __init__(self, folder: Path, name: str = "config.json") -> None:
        """Read the file; raises InvalidCheckpoint."""
        self._path = folder / name
        self._values: Mapping[str, object] = read_config(folder, name)

    def whole(self, name: str) -> int:
        """Return a whole number of at least 1."""
        value = self._values.get(name)
        return value if _is_whole(value) else self._refuse(name, "a whole number of at least 1")

    def number(self, name: str) -> float:
        """Return a number above 0."""
        value = self._values.get(name)
        positive = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        return float(cast("float", value)) if positive else self._refuse(name, "a number above 0")

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        value = self._values.get(name)
        return value if isinstance(value, bool) else self._refuse(name, "true or false")

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers of at least 1."""
        values = self._list(name)
        if not values or not all(_is_whole(value) for value in values):
            return self._refuse(name, "a list of whole numbers of at least 1")
        return cast("tuple[int, ...]", values)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers."""
        values = self._list(name)
        if not values or not all(type(value) in (int, float) for value in values):
            return self._refuse(name, "a list of numbers")
        return tuple(float(cast("float", value)) for value in values)

    def flags(self, name: str) -> tuple[bool, ...]:
        """Return a list of truth values."""
        values = self._list(name)
        if not all(isinstance(value, bool) for value in values):
            return self._refuse(name, "a list of true or false")
        return cast("tuple[bool, ...]", values)

    def states(self, name: str) -> bool:
        """Tell whether a setting is given and not null."""
        return self._values.get(name) is not None

    def require(self, name: str, expected: object) -> None:
        """Refuse a setting whose value is not the only one that the reference computes.

        One that is left out passes when None or False is expected.
        """
        value = self._values.get(name)
        if value != expected and not (value is None and expected is False):
            self._refuse(name, repr(expected))

    def _list(self, name: str) -> tuple[object, ...]:
        value = self._values.get(name)
        return tuple(cast("list[object]", value)) if isinstance(value, list) else ()

    def _refuse(self, name: str, expected: str) -> NoReturn:
        raise InvalidCheckpoint(
            f"{self._path}: {name} is {self._values.get(name)!r}, expected {expected}; the float64 "
            "reference computes nothing else"
        )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
