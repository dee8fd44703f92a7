"""Hold a JSON configuration against the constructor that it is for."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Union, cast, get_args, get_origin

# Sizes are 32-bit in every kernel library; depth is bounded so that a wrong digit does not build
# modules for hours.
_MAX_SIZE = 2**31 - 1
_MAX_DEPTH = 1000
_DEPTHS = frozenset({"num_layers", "num_res_blocks"})


def config_faults(
    constructor: Callable[..., object], config: Mapping[str, object]
) -> Iterator[str]:
    """Yield what a configuration gives that the constructor's annotations do not allow.

    Names that the constructor lacks are left to the library, and so are annotations that are
    not evaluated. Numbers must be finite, integers within 32 bits.
    """
    for name, parameter in inspect.signature(constructor).parameters.items():
        if name not in config or isinstance(parameter.annotation, str):
            continue
        value, default = config[name], cast("object", parameter.default)
        if value is None and default is None:
            continue
        if not _allows(parameter.annotation, value):
            yield f"{name} is {_shown(value)}, expected {_named(parameter.annotation)}"
        elif name in _DEPTHS and not 0 <= cast("int", value) <= _MAX_DEPTH:
            yield f"{name} is {value}, expected 0 to {_MAX_DEPTH}"


def _allows(hint: object, value: object) -> bool:
    origin, members = get_origin(hint), cast("tuple[object, ...]", get_args(hint))
    if origin in (Union, types.UnionType):
        return any(_allows(member, value) for member in members)
    if origin is Literal:
        return isinstance(value, str) and value in members
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(
            _allows(members[0], item) for item in cast("list[object]", value)
        )
    if hint is inspect.Parameter.empty:
        return True
    if hint is None or hint is type(None):
        return value is None
    if hint in (bool, str):
        return isinstance(value, cast("type", hint))
    if hint in (int, float):
        return _is_number(value, cast("type", hint))
    return not isinstance(value, list | int | float | str)


def _is_number(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) <= _MAX_SIZE
    return kind is float and isinstance(value, float) and math.isfinite(value)


def _named(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
