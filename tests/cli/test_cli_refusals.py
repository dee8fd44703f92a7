"""What must be refused: a typed, helpful error, exit 2, nothing written, no weight loaded."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ostinato.api
from ostinato.card import ModelSource
from ostinato.cli import main
from ostinato.models.registry import open_model
from ostinato.runtime import ResidentModel


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder in which loading a component is a failure of the test."""

    def no_weights(self: ResidentModel, name: str) -> object:
        raise AssertionError(f"component {name!r} was loaded")

    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ResidentModel, "component", no_weights)
    return folder


def refused(
    here: Path, capsys: pytest.CaptureFixture[str], *flags: str, prompt: str = "a red circle"
) -> tuple[str, str]:
    """Run `generate` and return the error's code and message."""
    assert main(["generate", prompt, "--json", *flags]) == 2
    shown = capsys.readouterr()
    error = json.loads(shown.out.splitlines()[-1])["error"]
    assert shown.err.startswith(f"error [{error['code']}]: ")
    assert "Traceback" not in shown.err
    assert os.listdir(here) == []
    return error["code"], error["message"]


def distilled(reference: str | Path) -> ModelSource:
    """Open the shipped model as its 4-step variant."""
    source = open_model(reference)
    card = source.card
    pinned = dataclasses.replace(card.recipe.assumes_schedule, num_inference_steps=(4,))
    recipe = dataclasses.replace(card.recipe, method="distilled", assumes_schedule=pinned)
    defaults = dataclasses.replace(card.defaults, num_inference_steps=4)
    derived = card.derive(model_id="builtin-4step", recipe=recipe, defaults=defaults)
    return ModelSource(card=derived, folder=source.folder)


def test_a_four_step_card_asked_for_fifty_steps(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ostinato.api, "open_model", distilled)
    code, message = refused(here, capsys, "--num-inference-steps", "50")
    assert code == "recipe_mismatch"
    assert "for 4; leave it out" in message


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--task", "image_to_video"), "unsupported_task", "it serves: text_to_video"),
        (("--height", "17"), "invalid_request", "nearest: 64"),
        (("--num-frames", "0"), "invalid_request", "nearest: 1"),
        (("--num-frames", "-1"), "invalid_request", "nearest: 1"),
        (("--num-frames", "1000000000"), "invalid_request", "nearest: 57600"),
        (("--guidance-scale", "nan"), "invalid_request", "finite"),
    ],
)
def test_a_request_that_the_shipped_card_refuses(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    code: str,
    says: str,
) -> None:
    found, message = refused(here, capsys, *flags)
    assert found == code
    assert says in message


def test_an_empty_prompt(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = refused(here, capsys, prompt="")
    assert code == "invalid_request"
    assert "some words" in message


@pytest.fixture
def wan(tiny_wan_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    source = tiny_wan_folder("UniPCMultistepScheduler")
    return Path(shutil.copytree(source, tmp_path / "wan"))


def test_a_folder_without_model_index(
    here: Path, wan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wan / "model_index.json").unlink()
    code, message = refused(here, capsys, "--model", str(wan))
    assert code == "invalid_checkpoint"
    assert "model_index.json is missing" in message


def test_a_truncated_safetensors_file(
    here: Path, wan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (weights,) = (wan / "transformer").glob("*.safetensors")
    os.truncate(weights, weights.stat().st_size - 64)
    code, message = refused(here, capsys, "--model", str(wan))
    assert code == "invalid_checkpoint"
    assert "truncated" in message


def test_a_pickle_checkpoint(here: Path, wan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (weights,) = (wan / "transformer").glob("*.safetensors")
    weights.rename(weights.with_suffix(".bin"))
    code, message = refused(here, capsys, "--model", str(wan))
    assert code == "unsafe_checkpoint"
    assert "convert" in message


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("when.txt", "expected one of .json"),
        ("nowhere/when.json", "does not exist; create it first"),
        (".", "is a folder"),
    ],
)
def test_a_timeline_that_cannot_be_written(
    here: Path, capsys: pytest.CaptureFixture[str], path: str, told: str
) -> None:
    code, message = refused(here, capsys, "--timeline", path)
    assert code == "invalid_output"
    assert told in message
