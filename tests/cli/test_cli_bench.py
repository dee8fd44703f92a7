"""`ostinato bench`: the list, the refusals, and that every benchmark it names is there."""

from __future__ import annotations

import json

import pytest

from ostinato.backend.importing import load_object
from ostinato.bench import BenchArguments, LeaksArguments, leaks, overhead
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
    assert main(["bench", "leaks", flag, "0"]) == 2
    assert f"{flag} is 0" in capsys.readouterr().err


def test_a_flag_that_a_benchmark_does_not_take_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "overhead", "--requests", "50"]) == 2
    told = capsys.readouterr().err
    assert "benchmark 'overhead' takes no --requests" in told
    assert "it takes: --quick, --threads, --seed" in told


@pytest.mark.parametrize(
    ("name", "module", "expected"),
    [("overhead", overhead, BenchArguments()), ("leaks", leaks, LeaksArguments(requests=1000))],
)
def test_what_is_not_typed_is_the_benchmarks_own(
    name: str, module: object, expected: BenchArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[BenchArguments] = []

    def run(arguments: BenchArguments) -> Report:
        given.append(arguments)
        return Report(name=name, figures={}, targets={}, environment={})

    monkeypatch.setattr(module, "run", run)
    assert main(["bench", name]) == 0
    assert given == [expected]


@pytest.mark.parametrize("name", ["overhead", "leaks"])
def test_a_thread_count_that_the_environment_contradicts_is_refused(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "2")
    assert main(["bench", name, "--threads", "1"]) == 2
    assert "OSTINATO_NUM_THREADS has every engine use 2" in capsys.readouterr().err


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
    assert given == [LeaksArguments(quick=True, requests=50, seed=9, threads=2)]
    assert last_line(capsys.readouterr().out)["passed"] is (exit_code == 0)
