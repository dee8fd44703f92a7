"""A place that cannot be written is known before any work, and looking at it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.errors import InvalidOutput
from ostinato.parity.written import require_writable, writing


def test_looking_leaves_all_as_it_was(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("what was there")
    require_writable(kept)
    require_writable(tmp_path / "new.json")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert kept.read_text() == "what was there"


@pytest.mark.parametrize("name", ["", "no/folder.json", "file/below.json", "zero\0byte", "n" * 300])
def test_what_is_no_place_for_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOutput, match="cannot be written"):
        require_writable(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_fault_while_writing_is_the_same_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidOutput, match="No space left"), writing(tmp_path / "page.html"):
        raise OSError(28, "No space left on device")
