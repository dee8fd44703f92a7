"""`ostinato models` and `inspect`: the card in words and whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.card import ModelCard
from ostinato.cli import main
from ostinato.cli._models import table
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


def test_table_aligns_columns() -> None:
    assert table([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"
