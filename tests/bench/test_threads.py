"""What a benchmark says of its threads is what was in force."""

from __future__ import annotations

import pytest
import torch

from ostinato.bench._threads import threads_for, torch_threads
from ostinato.errors import BadInput


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


def test_the_callers_thread_count_is_back() -> None:
    before = torch.get_num_threads()
    with torch_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
