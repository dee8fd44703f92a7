"""What a benchmark says of its threads is what was in force."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ostinato.bench._threads import kernel_threads, threads_for, told_threads, torch_threads
from ostinato.errors import BadInput
from ostinato.models.registry import open_model


@pytest.mark.parametrize(
    ("variable", "asked", "expected"),
    [("", None, 1), ("", 3, 3), ("2", None, 2), ("2", 2, 2)],
)
def test_what_was_asked_or_the_environment_or_one(
    variable: str, asked: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", variable)
    assert threads_for(asked) == expected


def test_a_contradiction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "2")
    with pytest.raises(BadInput, match="leave --threads out"):
        threads_for(1)


def test_the_environment_goes_before_the_card(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = open_model(tiny_builtin_folder).card
    monkeypatch.delenv("OSTINATO_NUM_THREADS", raising=False)
    assert kernel_threads(card) == card.cpu_threads == 1
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "2")
    assert kernel_threads(card) == 2


def test_one_number_is_told_when_all_are_equal_and_each_when_not() -> None:
    assert told_threads({"wan": 2, "builtin": 2}) == "2"
    assert told_threads({"wan": 2, "builtin": 1, "other": 2}) == "1 (builtin), 2 (wan, other)"


def test_the_callers_thread_count_is_back() -> None:
    before = torch.get_num_threads()
    with torch_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
