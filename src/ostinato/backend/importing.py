"""Objects by import string, so that cards stay data."""

from __future__ import annotations

import importlib

from ostinato.errors import InvalidCard


def load_object(import_string: str) -> object:
    """Return what `package.module:Name` names; raises InvalidCard when there is no such thing.

    Only cards that come with installed code name import strings; a checkpoint folder never does.
    """
    module_name, _, name = import_string.partition(":")
    try:
        found: object = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidCard(f"import string {import_string!r} does not resolve: {error}") from error
    return found
