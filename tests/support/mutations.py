"""Every value that differs from a given one in a single place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum

Path = tuple[str, ...]


def mutations(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield every copy of `value` that differs in one leaf, one item or one key."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for where, changed in mutations(getattr(value, field.name), (*path, field.name)):
                yield where, dataclasses.replace(value, **{field.name: changed})
            if "None" in str(field.type) and getattr(value, field.name) is not None:
                yield (*path, field.name, "none"), dataclasses.replace(value, **{field.name: None})
    elif isinstance(value, tuple):
        if value:
            yield (*path, "shorter"), value[:-1]
        for index, item in enumerate(value):
            for where, changed in mutations(item, (*path, str(index))):
                yield where, (*value[:index], changed, *value[index + 1 :])
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield (*path, key, "gone"), {k: v for k, v in value.items() if k != key}
            for where, changed in mutations(item, (*path, key)):
                yield where, {**value, key: changed}
    elif value is not None:
        yield path, _other(value)


def _other(leaf: object) -> object:
    if isinstance(leaf, Enum):
        members = list(type(leaf))
        return members[(members.index(leaf) + 1) % len(members)]
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, int | float):
        return leaf + 1
    assert isinstance(leaf, str), f"a leaf of type {type(leaf)} needs a mutation"
    return leaf + "x"
