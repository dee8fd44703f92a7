"""The names that people type are a public surface; changing one must be deliberate."""

from __future__ import annotations

import re

import pytest

from ostinato.cli import main

FLAGS = (
    (
        "generate",
        "PROMPT --debug --flow-shift --fps --guidance-scale --height --help --json --model "
        "--negative-prompt --num-frames --num-inference-steps --output --outputs --quiet "
        "--sampler --seed --task --timeline --width",
    ),
    ("models", "--debug --help --json"),
    ("inspect", "MODEL --debug --help --json"),
    (
        "train",
        "RECIPE --debug --export-to --help --json --list --no-resume --output-dir --parent --quiet",
    ),
    ("eval", "MODEL --debug --help --json --prompts --quiet --suite"),
    (
        "verify",
        "MODEL --all-tiny --debug --dtype --errors --help --html --json --perturb --quick --quiet "
        "--write-docs --write-goldens",
    ),
    ("bench", "NAME --debug --help --json --quick --requests --seed --threads"),
    (
        "simulate",
        "SUBJECT --debug --devices --help --json --no-stacking --policy --profiles",
    ),
    ("doctor", "--debug --help --json --quick"),
)


@pytest.mark.parametrize(("command", "expected"), FLAGS)
def test_flags_are_frozen(
    command: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    positional, *flags = expected.split()
    if positional.startswith("--"):
        flags.insert(0, positional)
    else:
        assert re.search(rf"^\W*{positional}\]?\s", text, re.MULTILINE)
    listed = set(re.findall(r"^\W*(?:-h, )?(--[a-z][a-z-]*)", text, re.MULTILINE))
    assert sorted(listed) == flags


def test_commands_are_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out.splitlines()[0]
    listed = re.search(r"\{(.*)\}", usage)
    assert listed is not None
    assert listed[1].split(",") == [command for command, _ in FLAGS]
