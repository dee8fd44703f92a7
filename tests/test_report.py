"""Reports: a target without a figure fails, and the JSON line is stable."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import pytest

from ostinato.report import (
    Comparison,
    Report,
    _processor,
    describe_environment,
    source_commit,
    wilson_interval,
)


def report(figures: dict[str, float]) -> Report:
    return Report(
        name="world",
        figures=figures,
        targets={
            "all_correct": (Comparison.AT_LEAST, 0.75),
            "drift": (Comparison.AT_MOST, 5.0),
        },
        environment={"torch": "x"},
        detail={"rows": [1, 2]},
    )


@pytest.mark.parametrize(
    ("figures", "passed"),
    [
        ({"all_correct": 0.75, "drift": 5.0}, True),
        ({"all_correct": 0.74, "drift": 1.0}, False),
        ({"all_correct": 0.9, "drift": 5.1}, False),
        ({"all_correct": 0.9}, False),
        ({"all_correct": math.nan, "drift": 0.0}, False),
        ({}, False),
    ],
)
def test_passed_needs_every_target_met_by_a_figure(figures: dict[str, float], passed: bool) -> None:
    assert report(figures).passed is passed


def test_the_json_line_has_the_stable_names() -> None:
    line = report({"all_correct": 0.5, "drift": 1.0}).to_json()
    assert "\n" not in line
    document = json.loads(line)
    assert set(document) == {"name", "figures", "targets", "passed", "environment", "detail"}
    assert document["targets"]["all_correct"] == [">=", 0.75]
    assert document["passed"] is False


def test_the_environment_names_what_figures_depend_on() -> None:
    environment = describe_environment(threads=2)
    assert {"processor", "threads", "torch", "commit"} <= set(environment)
    assert environment["threads"] == "2"


@pytest.mark.parametrize(
    "change",
    [
        ("model name\t: AMD EPYC", "model name\t: Xeon"),
        ("model\t\t: 1\n", "model\t\t: 17\n"),
        ("stepping\t: 1", "stepping\t: 2"),
        ("avx2", "avx2 avx512f"),
        (" fma", ""),
    ],
)
def test_two_kinds_of_processor_have_two_names(tmp_path: Path, change: tuple[str, str]) -> None:
    text = (
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n"
        "stepping\t: 1\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nmodel name\t: other\n"
    )
    info, other = tmp_path / "one", tmp_path / "other"
    info.write_text(text)
    other.write_text(text.replace(*change))
    assert _processor(info) == "AMD EPYC (25/1/1; avx2 fma)"
    assert _processor(other) != _processor(info)
    assert _processor(tmp_path / "none")


ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd aes crc32 asimdhp asimddp sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1

"""


@pytest.mark.parametrize(
    "change",
    [
        ("0x41", "0xc0"),
        ("architecture: 8", "architecture: 9"),
        ("variant\t: 0x1", "variant\t: 0x0"),
        ("0xd40", "0xd4f"),
        ("revision\t: 1", "revision\t: 0"),
        (" sve", " sve sve2 bf16"),
        (" asimddp", ""),
    ],
)
def test_two_kinds_of_arm_processor_have_two_names(
    tmp_path: Path, change: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    info, other = tmp_path / "one", tmp_path / "other"
    same = ARM + ARM.replace("processor\t: 0", "processor\t: 1")
    info.write_text(same)
    assert _processor(info) == "aarch64 (0x41/8/0x1/0xd40/1; asimd asimdhp asimddp sve)"
    other.write_text(same.replace(*change))
    assert _processor(other) != _processor(info)


def test_a_processor_with_two_kinds_of_cores_is_not_one_with_one(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(ARM + ARM.replace("0xd40", "0xd05"))
    assert "(0x41/8/0x1/0xd40/1 + 0x41/8/0x1/0xd05/1; " in _processor(info)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, timeout=30)


def test_the_commit_is_of_the_repository_that_tracks_the_file(tmp_path: Path) -> None:
    package = tmp_path / "venv" / "site-packages"
    package.mkdir(parents=True)
    (tmp_path / "own.py").write_text("1\n")
    (package / "installed.py").write_text("1\n")
    assert source_commit(tmp_path / "own.py") == "unknown"
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "own.py")
    git(tmp_path, "commit", "-qm", "First")
    found = source_commit(tmp_path / "own.py")
    assert re.fullmatch("[0-9a-f]{40}", found)
    assert source_commit(tmp_path / "own.py", digits=12) == found[:12]
    assert source_commit(package / "installed.py") == "unknown"
    (tmp_path / "own.py").write_text("2\n")
    assert source_commit(tmp_path / "own.py") == f"{found}-dirty"


def test_wilson_interval_agrees_with_published_values() -> None:
    # Brown, Cai, DasGupta (2001): 0 of 10 gives (0, 0.2775); 5 of 10 gives (0.2366, 0.7634).
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)
