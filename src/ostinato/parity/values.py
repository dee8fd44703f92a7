"""What plans carry, taken apart: detached copies, and every tensor with its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, cast

import numpy as np
import torch

from ostinato.errors import InternalError

Values: TypeAlias = Mapping[str, object]
"""Inputs or outputs of a call, by name."""


def detached(value: object) -> object:
    """Copy a value so that nothing which runs later can change it; tensors lose their graph.

    Raises InternalError for a kind of value that no plan carries.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return cast("object", value.copy())
    if isinstance(value, tuple):
        items = [detached(item) for item in cast("tuple[object, ...]", value)]
        return rebuilt(cast("tuple[object, ...]", value), items)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise InternalError(f"a call carries a {type(value).__name__}, which cannot be recorded")


def rebuilt(like: tuple[object, ...], items: list[object]) -> tuple[object, ...]:
    """Make a tuple of the type of `like`; a named tuple keeps its names."""
    if hasattr(like, "_fields"):
        return cast("Callable[..., tuple[object, ...]]", type(like))(*items)
    return tuple(items)


def tensors(values: Values) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor and array of `values`, with a path such as `layers[2].value`."""
    for path, value in leaves(values):
        if isinstance(value, torch.Tensor):
            yield path, value


def leaves(values: Values) -> Iterator[tuple[str, object]]:
    """Yield everything that `values` holds, tuples taken apart and arrays as tensors."""
    for name, value in values.items():
        yield from _within(value, name)


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare dtype, shape and bytes: NaN equals itself, and 0 is not -0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    flat = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*flat)


def _within(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, np.ndarray):
        yield path, torch.from_numpy(value)
    elif isinstance(value, tuple) and value:
        names = cast("tuple[str, ...] | None", getattr(value, "_fields", None))
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            step = f"[{index}]" if names is None else f".{names[index]}"
            yield from _within(item, path + step)
    else:
        yield path, value
