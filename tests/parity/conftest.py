"""Tiny models under test, each recorded once for the tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.card import ModelSource
from ostinato.models.builtin.card import open_builtin
from ostinato.models.wan.open import open_wan
from ostinato.parity.subject import Subject
from support.subjects import QUICK, with_parity


@pytest.fixture(scope="session")
def builtin_source(tiny_builtin_folder: Path) -> ModelSource:
    """Clips of two blocks, where the card asks for three: enough that history is read."""
    return with_parity(open_builtin(tiny_builtin_folder), num_frames=16)


@pytest.fixture(scope="session")
def wan_source(tiny_wan_folder: Callable[..., Path]) -> ModelSource:
    """Clips of two latent frames, where the card asks for three: decoding them takes its time."""
    return with_parity(open_wan(tiny_wan_folder()), num_frames=5)


@pytest.fixture(scope="session")
def builtin(builtin_source: ModelSource) -> Subject:
    return Subject(builtin_source, QUICK)


@pytest.fixture(scope="session")
def wan(wan_source: ModelSource) -> Subject:
    return Subject(wan_source, QUICK)
