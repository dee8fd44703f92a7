"""`ostinato train`: recipes are found by name; the run itself is tested with the trainer."""

from __future__ import annotations

import json

import pytest

from ostinato.cli import main
from ostinato.cli._train import recipes
from ostinato.training.config import TrainingConfig


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
