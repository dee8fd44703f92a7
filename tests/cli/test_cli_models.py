"""`ostinato models` and `inspect`: the card in words and whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.card import ModelCard
from ostinato.cli import main
from ostinato.cli._models import table
from ostinato.models.builtin.layout import PROVENANCE
from ostinato.models.registry import open_model


def test_models_lists_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    document = json.loads(last)
    assert {family["family"] for family in document["families"]} >= {"builtin", "wan"}
    for family in document["families"]:
        assert any(row.startswith(family["family"]) and family["summary"] in row for row in rows)


def test_inspect_shows_the_whole_card(
    tiny_wan_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_wan_folder()
    card = open_model(folder).card
    assert main(["inspect", str(folder), "--json"]) == 0
    text, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
    document = json.loads(last)
    assert ModelCard.from_json(json.dumps(document["card"])) == card
    assert document["digest"] == card.digest()
    assert document["folder"] == str(folder)
    for words in (card.digest(), card.model_id, "text_to_video", "guidance", "determinism"):
        assert words in text
    for component in card.components:
        assert component.class_name in text

    assert document["validation"] == []
    assert "held-out scenes" not in text


def test_inspect_prints_the_validation_curve_of_trained_weights(
    tiny_builtin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny_builtin_folder, tmp_path / "trained")
    curve = [{"step": 400 * n, "val_wave": 0.1 / n, "val_history_high": 0.25 / n} for n in (1, 2)]
    provenance = json.loads((folder / PROVENANCE).read_text())
    (folder / PROVENANCE).write_text(json.dumps({**provenance, "validation": curve}))
    assert main(["inspect", str(folder), "--json"]) == 0
    text, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
    assert json.loads(last)["validation"] == curve
    assert text.splitlines()[-3:] == [
        "step  val_wave  val_history_high",
        "400   0.1       0.25",
        "800   0.05      0.125",
    ]


def test_table_aligns_columns() -> None:
    assert table([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"
