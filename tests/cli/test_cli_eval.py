"""`ostinato eval`: the table for people, the stable JSON line, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.cli import main
from ostinato.cli._eval import report_result
from ostinato.report import Comparison, Report
from ostinato.wire import encode


def _report(color: float) -> Report:
    return Report(
        name="world",
        figures={"prompts": 12.0, "color": color},
        targets={"color": (Comparison.AT_LEAST, 0.95), "shape": (Comparison.AT_LEAST, 0.5)},
        environment={"torch": "2.13.0"},
        detail={"wrong": ["a red circle"]},
    )


def test_target_without_a_figure_fails() -> None:
    result = report_result(_report(0.99))
    assert result.exit_code == 1
    assert "shape    not measured  >= 0.5   MISSED" in result.text
    assert result.text.endswith("world: FAILED")


def test_json_line_has_the_stable_keys() -> None:
    document = json.loads(encode(report_result(_report(0.5)).document))
    assert list(document) == ["detail", "environment", "figures", "name", "passed", "targets"]
    assert document["figures"] == {"prompts": 12.0, "color": 0.5}
    assert document["targets"]["color"] == [">=", 0.95]
    assert document["passed"] is False


def test_suite_must_be_on_the_card(
    tiny_wan_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(tiny_wan_folder()), "--suite", "world"]) == 2
    assert "--suite is 'world'" in capsys.readouterr().err
