"""Run one test of a suite on a broken subject: it must not pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from ostinato.errors import OstinatoError


def suite_tests(suite: type) -> set[str]:
    """Return the names of a suite's tests."""
    found = inspect.getmembers(suite, inspect.isfunction)
    return {name for name, _ in found if name.startswith("test_")}


def bites(test: Callable[[], object]) -> None:
    """Expect a failed assertion, a refusal that did not come, or a typed error."""
    try:
        test()
    except (AssertionError, OstinatoError, pytest.fail.Exception):
        return
    raise RuntimeError("the suite let a broken subject pass")
