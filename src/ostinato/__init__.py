"""Ostinato: a model-native runtime for serving and post-training composite generative models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import OstinatoError as OstinatoError
from ostinato.request import Request as Request

if TYPE_CHECKING:
    from ostinato.api import Engine as Engine
    from ostinato.api import Model as Model
    from ostinato.api import load as load

_LAZY = frozenset({"Engine", "Model", "load"})


def __getattr__(name: str) -> object:
    """Import what needs torch only when it is used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
    import ostinato.api

    return getattr(ostinato.api, name)
