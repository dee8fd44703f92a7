"""The environment is typed: a value that does not parse is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.env import Environment
from ostinato.errors import BadInput


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSTINATO_NUM_THREADS", "OSTINATO_CACHE_DIR", "OSTINATO_RUNS_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_set() -> None:
    environment = Environment.read()
    assert environment.num_threads is None
    assert environment.cache_dir == Path.home() / ".cache" / "ostinato"
    assert environment.runs_dir == Path.home() / ".cache" / "ostinato" / "runs"


@pytest.mark.parametrize(("text", "threads"), [("1", 1), ("08", 8), ("9999", 9999)])
def test_threads(monkeypatch: pytest.MonkeyPatch, text: str, threads: int) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", text)
    assert Environment.read().num_threads == threads


@pytest.mark.parametrize(
    "text", ["0", "-1", "two", "1.5", " 2", "10000", "\u00b2", "\u0664", "1_0"]
)
def test_threads_that_do_not_parse(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", text)
    with pytest.raises(BadInput, match="OSTINATO_NUM_THREADS"):
        Environment.read()


def test_empty_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "")
    monkeypatch.setenv("OSTINATO_CACHE_DIR", "")
    monkeypatch.setenv("OSTINATO_RUNS_DIR", "")
    environment = Environment.read()
    assert environment.num_threads is None
    assert environment.cache_dir.name == "ostinato"
    assert environment.runs_dir.name == "runs"


def test_runs_dir_and_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_RUNS_DIR", "/data/runs")
    assert Environment.read().runs_dir == Path("/data/runs")
    monkeypatch.setenv("OSTINATO_RUNS_DIR", "~/runs")
    assert Environment.read().runs_dir == Path.home() / "runs"


def test_cache_dir_holds_the_runs_unless_they_have_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE_DIR", "~/cache")
    assert Environment.read().cache_dir == Path.home() / "cache"
    assert Environment.read().runs_dir == Path.home() / "cache" / "runs"
    monkeypatch.setenv("OSTINATO_RUNS_DIR", "/data/runs")
    assert Environment.read().cache_dir == Path.home() / "cache"
    assert Environment.read().runs_dir == Path("/data/runs")
