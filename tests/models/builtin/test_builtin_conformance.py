"""The built-in model passes the family suite."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from conformance.family import ModelFamilySuite


class TestBuiltinConformance(ModelFamilySuite):
    small = MappingProxyType({"num_frames": 24, "num_inference_steps": 2})

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tiny_builtin_folder: Path) -> Path:
        return tiny_builtin_folder
