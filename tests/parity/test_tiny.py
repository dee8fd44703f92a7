"""Every family is verified on a small folder and held to the goldens that come with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ostinato.errors import InvalidCard
from ostinato.models.registry import FAMILIES, Family
from ostinato.parity import tiny
from ostinato.parity.goldens import read_goldens
from ostinato.parity.ladder import report_of
from ostinato.parity.subject import VerifyOptions
from ostinato.parity.tiny import tiny_goldens, verify_families

BARE = Family(name="bare", summary="", pipelines=(), open="a.b:c")
BUILTIN = FAMILIES[0]


def test_a_family_that_is_skipped_is_red(tmp_path: Path) -> None:
    broken = dataclasses.replace(BARE, name="broken", tiny="ostinato.nonesuch:write")
    orphan = dataclasses.replace(BARE, name="orphan", measures="nobody")
    measured = dataclasses.replace(BARE, name="measured", measures="bare")
    found = verify_families((BARE, broken, orphan, measured), tmp_path)
    assert [each.model_id for each in found] == ["tiny bare", "tiny broken", "tiny orphan"]
    assert not any(each.passed for each in found)
    assert "names no tiny folder" in found[0].gates[0].message
    assert "does not open" in found[1].gates[0].message
    assert not report_of(found).passed


def test_each_family_has_a_tiny_folder_with_goldens_or_measures_one_that_has() -> None:
    with_tiny = {family.name for family in FAMILIES if family.tiny is not None}
    for family in FAMILIES:
        assert family.name in with_tiny or family.measures in with_tiny
        if family.tiny is not None:
            assert len(read_goldens(tiny_goldens(family)).runs) == 3
    with pytest.raises(InvalidCard, match="names no tiny folder"):
        tiny_goldens(BARE)


def test_a_family_without_goldens_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "tiny_goldens", lambda family: tmp_path / "nonesuch.json")
    # Without a prompt no gate serves anything; the one of goldens does not come so far.
    found = verify_families((BUILTIN,), tmp_path, VerifyOptions(prompts=()))[0]
    gate = {gate.name: gate for gate in found.gates}["goldens"]
    assert not gate.passed
    assert "nonesuch.json' cannot be read" in gate.message
    assert not found.passed


@pytest.mark.slow
def test_all_tiny_families_pass(tmp_path: Path) -> None:
    found = verify_families(FAMILIES, tmp_path)
    assert [each.model_id for each in found] == ["tiny builtin", "tiny wan"]
    told = [gate.message for each in found for gate in each.gates if not gate.passed]
    assert told == []
    assert all("goldens" in {gate.name for gate in each.gates} for each in found)
    assert report_of(found).passed
