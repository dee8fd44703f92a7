"""One rule says how many threads a model's kernels get, and the engine keeps to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from ostinato.models.registry import open_model
from ostinato.runtime import Engine
from ostinato.runtime.threads import kernel_threads, told_threads
from ostinato.tasks import OutputName
from support.requests import request


@pytest.mark.parametrize(
    ("variable", "of_card", "expected"),
    [("", None, None), ("", 3, 3), ("2", None, 2), ("2", 3, 2)],
)
def test_the_environment_then_the_card_then_the_process(
    tiny_builtin_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    of_card: int | None,
    expected: int | None,
) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", variable)
    source = open_model(tiny_builtin_folder)
    source = dataclasses.replace(source, card=dataclasses.replace(source.card, cpu_threads=of_card))
    expected = expected or torch.get_num_threads()
    assert kernel_threads(source.card) == expected
    with Engine() as engine:
        engine.add(source)
        asked = request(
            model=source.card.model_id,
            num_frames=12,
            num_inference_steps=1,
            outputs=(OutputName.LATENTS,),
        )
        output = engine.run([asked])[0]
    assert output.provenance.cpu_threads == expected


def test_a_model_of_no_number_gets_the_environments_or_the_process_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OSTINATO_NUM_THREADS", raising=False)
    assert kernel_threads() == torch.get_num_threads()
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "7")
    assert kernel_threads() == 7


def test_one_number_is_told_when_all_are_equal_and_each_when_not() -> None:
    assert told_threads({"wan": 2, "builtin": 2}) == "2"
    assert told_threads({"wan": 2, "builtin": 1, "other": 2}) == "1 (builtin), 2 (wan, other)"
