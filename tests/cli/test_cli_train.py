"""`ostinato train`: recipes are found by name, and what a run exports is a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ostinato_recipes.builtin
from ostinato.cli import main
from ostinato.cli._train import recipes
from ostinato.training.config import TrainingConfig
from support.tiny_training import TINY


def test_every_recipe_is_listed_and_makes_a_configuration_of_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--list", "--json"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert list(json.loads(last)["recipes"]) == list(recipes())
    assert len(rows) == len(recipes()) > 0
    for name, recipe in recipes().items():
        config = recipe()
        assert isinstance(config, TrainingConfig)
        assert config.name == name
        assert recipe.__doc__


def test_a_run_exports_a_model_that_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tiny() -> TrainingConfig:
        """Return the tiny run."""
        return TINY

    monkeypatch.setattr(tiny, "__module__", ostinato_recipes.builtin.__name__)
    monkeypatch.setattr(ostinato_recipes.builtin, "tiny", tiny, raising=False)
    weights, clip = tmp_path / "mine", tmp_path / "clip.mp4"
    run = ["train", "tiny", "--output-dir", str(tmp_path / "run"), "--quiet"]
    assert main([*run, "--export-to", str(weights)]) == 0
    assert capsys.readouterr().out.strip() == str(weights)
    small = ["--num-frames", "12", "--num-inference-steps", "1", "--quiet"]
    command = ["generate", "a red circle", "--model", str(weights), "--output", str(clip)]
    assert main([*command, *small]) == 0
    assert clip.stat().st_size > 0
    assert main([*run, "--export-to", str(weights)]) == 2
    assert "exists already" in capsys.readouterr().err
