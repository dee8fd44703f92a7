"""A reference that does not fit into memory is refused with numbers before anything is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from ostinato.backend.reference.weights import WeightReader
from ostinato.card import ModelSource
from ostinato.parity import room
from ostinato.parity.folders import weight_folders
from ostinato.parity.gate import Gate, Rung
from ostinato.parity.gates.components import components
from ostinato.parity.gates.trajectory import trajectory
from ostinato.parity.ladder import OwedGate, run_gate
from ostinato.parity.precision import measure_errors
from ostinato.parity.room import ReferenceTooLarge, memory_available, require_room
from ostinato.parity.subject import Subject

GIB = 2**30


def test_eight_bytes_a_number_and_the_largest_file_are_needed(builtin_source: ModelSource) -> None:
    files = sorted(builtin_source.folder.rglob("*.safetensors"))
    numbers = 0
    for file in files:
        with safe_open(file, "pt") as opened:
            numbers += sum(math.prod(opened.get_slice(k).get_shape()) for k in opened.keys())  # noqa: SIM118 - no dict
    needed = 8 * numbers + max(file.stat().st_size for file in files)
    folders = weight_folders(builtin_source)
    assert len(folders) == len(files) == 3
    require_room(folders, needed)
    with pytest.raises(ReferenceTooLarge, match=r"needs 0\.0 GiB \(text_encoder \d+") as raised:
        require_room(folders, needed - 1)
    assert "million numbers of 8 bytes" in str(raised.value)
    assert f"{(needed - 1) / GIB:.1f} GiB are available" in str(raised.value)


@pytest.mark.parametrize("gate", [components, trajectory])
def test_a_gate_without_room_is_red_and_has_read_nothing(
    gate: Gate, builtin: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject(builtin.source, builtin.options)
    subject.recorded = builtin.recorded  # type: ignore[misc]
    monkeypatch.setattr(room, "memory_available", lambda: 2**20)
    monkeypatch.setattr(WeightReader, "__init__", lambda *given: pytest.fail("weights were read"))
    result = run_gate(OwedGate(name="gate", rung=Rung.C0, run=gate), subject)
    assert not result.passed
    assert result.measured == 0
    assert result.message.startswith("[reference_too_large] the float64 reference needs")
    with pytest.raises(ReferenceTooLarge):
        measure_errors(subject, "float32")


@pytest.mark.parametrize(
    ("meminfo", "limit", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:    1024 kB\n", "max\n", lambda total: 2**20),
        ("MemTotal: 9 kB\nMemAvailable:    1024 kB\n", "4096\n", lambda total: 4096),
        ("", "", lambda total: total),
    ],
)
def test_what_is_available_is_the_least_that_the_system_tells(
    tmp_path: Path, meminfo: str, limit: str, expected: Callable[[int], int]
) -> None:
    for name, text in (("meminfo", meminfo), ("limit", limit)):
        if text:
            (tmp_path / name).write_text(text)
    absent = tmp_path / "absent"
    total = memory_available(absent, absent)
    assert total > 2**20
    assert memory_available(tmp_path / "meminfo", tmp_path / "limit") == expected(total)
