"""Compare, copy and look through the values that states and plans are made of."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import nn


class Leaf(NamedTuple):
    """A value that has no parts of its own, and where it lies."""

    path: str
    value: object


def leaves(value: object, path: str = "") -> Iterator[Leaf]:
    """Yield the leaves of dataclasses, mappings, tuples and lists, in order."""
    parts = _parts(value)
    if parts is None:
        yield Leaf(path, value)
        return
    for name, part in parts:
        yield from leaves(part, f"{path}.{name}")


def _parts(value: object) -> list[tuple[object, object]] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, tuple | list) else None


class Snapshot(NamedTuple):
    """A copy of a value's leaves."""

    leaves: tuple[Leaf, ...]


def snapshot(value: object) -> Snapshot:
    """Copy what can change in place, so that `differences` can tell later whether it did."""
    return Snapshot(tuple(Leaf(path, _copied(leaf)) for path, leaf in leaves(value)))


def _copied(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def differences(one: object, other: object) -> list[str]:
    """Return the paths at which two values, or a snapshot and a value, differ to the bit."""
    ours, theirs = _leaves_of(one), _leaves_of(other)
    if [leaf.path for leaf in ours] != [leaf.path for leaf in theirs]:
        return sorted({leaf.path for leaf in ours} ^ {leaf.path for leaf in theirs}) or ["order"]
    pairs = zip(ours, theirs, strict=True)
    return [mine.path for mine, its in pairs if not _same(mine.value, its.value)]


def _leaves_of(value: object) -> tuple[Leaf, ...]:
    return value.leaves if isinstance(value, Snapshot) else tuple(leaves(value))


def _same(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.detach(), other.detach())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    # Objects without an equality of their own, such as a ring, are told apart by what they do.
    return type(one).__eq__ is object.__eq__ or one == other


def mutable_parts(value: object) -> dict[int, str]:
    """Return, by identity, the memory of tensors and every container that can change in place."""
    found: dict[int, str] = {}
    _collect(value, "", found, set())
    return found


def _collect(value: object, path: str, found: dict[int, str], seen: set[int]) -> None:
    if value is None or isinstance(value, type | ModuleType) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        found[value.untyped_storage().data_ptr()] = path
        return
    if isinstance(value, np.ndarray):
        found[value.__array_interface__["data"][0]] = path
        return
    if isinstance(value, dict | list | set | bytearray):
        found[id(value)] = path
    parts = _parts(value)
    if parts is None and hasattr(value, "__dict__") and not callable(value):
        found[id(value)] = path
        parts = list(vars(value).items())
    for name, part in parts or ():
        _collect(part, f"{path}.{name}", found, seen)


def modules_of(component: object) -> list[nn.Module]:
    """Return the networks that an adapter holds, however deep below it they lie."""
    found: list[nn.Module] = []
    seen: set[int] = set()
    waiting: list[object] = [component]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType | str | bytes):
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found.append(value)
        else:
            waiting.extend(gc.get_referents(value))
    return found
