"""Fixtures that several rooms share: model folders of real classes at tiny size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ostinato.models.builtin.tiny import write_tiny_builtin
from ostinato.models.wan.tiny import write_tiny_wan


@pytest.fixture(scope="session", autouse=True)
def _cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests measure out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSTINATO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_wan_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return `folder(scheduler_class_name) -> Path`; each folder is built once, leave it as it is.

    The scheduler is `UniPCMultistepScheduler` or `FlowMatchEulerDiscreteScheduler`.
    """
    root = tmp_path_factory.mktemp("wan")

    @cache
    def folder(scheduler: str = "UniPCMultistepScheduler") -> Path:
        return write_tiny_wan(root / f"tiny-wan-{scheduler}", scheduler)

    return folder


@pytest.fixture(scope="session")
def tiny_builtin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in the built-in model's layout with seeded random weights."""
    return write_tiny_builtin(tmp_path_factory.mktemp("tiny") / "builtin")
