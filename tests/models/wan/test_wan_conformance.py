"""Wan 2.1 passes the family suite, with each scheduler that is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest

from conformance.family import ModelFamilySuite

SMALL = MappingProxyType({"height": 16, "width": 32, "num_frames": 5, "num_inference_steps": 2})


class TestWanConformance(ModelFamilySuite):
    small = SMALL
    stackable = MappingProxyType({"height": 64, "width": 64, "num_frames": 1})

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tiny_wan_folder: Callable[[str], Path]) -> Path:
        return tiny_wan_folder("UniPCMultistepScheduler")
