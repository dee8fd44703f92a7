"""Two ranks execute one stream of decisions, and make the same bytes.

Of the requests one fails in a call, one is cancelled in the middle of a call, one passes its
deadline and one overflows, each in a forward that it shares with others; on both ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ostinato.api import Engine
from ostinato.card import ModelSource
from ostinato.models.registry import open_model
from ostinato.runtime.ranks import follow
from support.faults import WAIT_S
from support.ranks import CODES, Drama, Made, QueueChannel, asked, engine_of, outcome, start


@pytest.fixture(scope="module")
def folders(tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path]) -> list[Path]:
    return [tiny_builtin_folder, tiny_wan_folder("UniPCMultistepScheduler")]


@pytest.fixture(scope="module")
def sources(folders: list[Path]) -> list[ModelSource]:
    return [open_model(folder) for folder in folders]


@pytest.fixture(scope="module")
def expected(sources: list[ModelSource]) -> Made:
    """What each request makes alone, or the code with which it has to fail."""
    found: Made = {f"{seed}/code": np.array(code) for seed, code in CODES.items()}
    with Engine(max_batch=1) as engine:
        ids = [str(engine.add(source).card.model_id) for source in sources]
        for request in asked(*ids):
            if request.seed not in CODES:
                found |= outcome(engine.submit(request))
    return found


def assert_same(found: Made, expected: Made) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_follower_makes_what_rank_0_makes_and_each_alone(
    sources: list[ModelSource], expected: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process: two threads and a queue between them."""
    channel, there = QueueChannel(silence_s=WAIT_S), Made()
    ids = [str(source.card.model_id) for source in sources]
    drama = Drama(monkeypatch, asked(*ids))
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(
            follow, channel, sources, on_end=lambda handle: there.update(outcome(handle))
        )
        with engine_of(channel) as engine:
            for source in sources:
                engine.add(source)
            here = drama.lead(engine)
        following.result(WAIT_S)
    assert_same(here, expected)
    assert_same(there, expected)


@pytest.mark.slow  # each process imports the libraries of models anew
@pytest.mark.multirank
def test_two_processes_over_gloo_make_what_one_alone_makes(
    folders: list[Path], expected: Made, tmp_path: Path
) -> None:
    ranks = [start(rank, tmp_path, folders) for rank in (0, 1)]
    for process in ranks:
        process.join(3 * WAIT_S)
    assert [process.exitcode for process in ranks] == [0, 0]
    for rank in (0, 1):
        assert_same(dict(np.load(tmp_path / f"{rank}.npz")), expected)
