"""`ostinato bench`: the list, the refusals, and that every benchmark it names is there."""

from __future__ import annotations

import json

import pytest

from ostinato.backend.importing import load_object
from ostinato.bench import BenchArguments, leaks
from ostinato.cli import main
from ostinato.cli._bench import BENCHMARKS
from ostinato.report import Comparison, Report


def last_line(text: str) -> dict[str, object]:
    return json.loads(text.splitlines()[-1])


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json"]) == 0
    *lines, document = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [each.name for each in BENCHMARKS]
    names = {each["name"] for each in json.loads(document)["benchmarks"]}
    assert {"overhead", "leaks", "heartbeat"} <= names


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda each: each.name)
def test_every_name_runs_something(benchmark: object) -> None:
    assert callable(load_object(benchmark.run))  # type: ignore[attr-defined]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    assert "no benchmark 'speed'; expected one of: overhead, leaks" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--requests", "--threads"])
def test_counts_below_one_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "overhead", flag, "0"]) == 2
    assert f"{flag} is 0" in capsys.readouterr().err


@pytest.mark.parametrize(("figure", "exit_code"), [(1.01, 0), (1.05, 1)])
def test_flags_arrive_and_a_missed_target_fails(
    figure: float,
    exit_code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[BenchArguments] = []

    def run(arguments: BenchArguments) -> Report:
        given.append(arguments)
        targets = {"ratio": (Comparison.AT_MOST, 1.02)}
        return Report(name="leaks", figures={"ratio": figure}, targets=targets, environment={})

    monkeypatch.setattr(leaks, "run", run)
    flags = ["--quick", "--requests", "50", "--seed", "9", "--threads", "2", "--json"]
    assert main(["bench", "leaks", *flags]) == exit_code
    assert given == [BenchArguments(quick=True, requests=50, seed=9, threads=2)]
    assert last_line(capsys.readouterr().out)["passed"] is (exit_code == 0)
