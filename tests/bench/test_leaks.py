"""The leak count: it passes on our engine, and whatever is left makes it miss."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from ostinato.bench import leaks
from ostinato.bench._arguments import BenchArguments
from ostinato.bench._footprint import Footprint, footprint, slope
from ostinato.bench._threads import torch_threads
from ostinato.bench._traffic import Fate
from ostinato.errors import BadInput
from ostinato.memory import KVPool
from ostinato.report import Report

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs Linux")
REQUESTS = 60
MUST_BE_NOTHING = (
    "wrong_outputs",
    "pages",
    "pool_bytes",
    "scope_holds",
    "temp_files",
    "threads_delta",
    "file_descriptors_delta",
)


def arguments(requests: int = REQUESTS, **changes: bool | int) -> BenchArguments:
    values: dict[str, bool | int] = {"quick": False, "seed": 5, "threads": 1, **changes}
    return BenchArguments(requests=requests, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report() -> Report:
    return leaks.run(arguments())


def test_nothing_is_left(report: Report) -> None:
    # So few requests in a process that runs other tests say nothing of the growth of its memory;
    # a thousand in one of their own do (the slow test below, and the command).
    missed = {figure for figure in report.targets if not report.meets(figure)}
    assert missed <= {"rss_growth_bytes_per_request"}, report.to_json()
    figures = report.figures
    assert {figures[name] for name in MUST_BE_NOTHING} == {0}
    assert figures["requests"] == REQUESTS
    ends = ("finished", "cancelled", "failed")
    assert sum(figures[end] for end in ends) == REQUESTS
    assert min(figures[end] for end in ends) > REQUESTS / 10


def test_every_fate_was_met(report: Report) -> None:
    assert set(report.detail["fates"]) == set(Fate)  # type: ignore[call-overload]


def test_the_report_is_one_line_of_json(report: Report) -> None:
    document = json.loads(report.to_json())
    assert document["name"] == "leaks"
    assert set(document["targets"]) == set(document["figures"])
    served = [row[0] for row in document["detail"]["samples"]]
    assert served == sorted(served)
    assert served[-1] == REQUESTS
    assert document["environment"]["threads"] == "1"


def test_the_callers_thread_count_is_back() -> None:
    before = torch.get_num_threads()
    with torch_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", [*MUST_BE_NOTHING, "rss_growth_bytes_per_request"])
def test_whatever_is_left_misses_its_target(name: str) -> None:
    """A megabyte over the requests of the second half is what an allocator does by itself."""
    samples = {served: Footprint(4, 9, 10**8) for served in range(20, 101, 4)}
    targets = leaks._targets(100, leaks._Watched(samples=samples))
    clean = {figure: 0.0 for figure in MUST_BE_NOTHING} | {
        "requests": 100,
        "finished": 60,
        "cancelled": 20,
        "failed": 20,
        "rss_growth_bytes_per_request": 2**20 / 40,
    }

    def judged(figures: Mapping[str, float]) -> bool:
        return Report(name="leaks", figures=figures, targets=targets, environment={}).passed

    assert judged(clean)
    assert not judged({**clean, name: clean[name] + 1})
    for end in ("requests", "finished", "cancelled", "failed"):
        assert not judged({**clean, end: 0}), "a run in which nothing happens proves nothing"


def test_a_ring_that_stays_open_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVPool, "close_ring", lambda self, ring: None)
    found = leaks.run(arguments(leaks.MIN_REQUESTS))
    assert not found.passed
    assert found.figures["pages"] > 0
    assert found.figures["pool_bytes"] > 0


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(BadInput, match="39 requests say nothing"):
        leaks.run(arguments(39))
    with pytest.raises(BadInput, match=r"39 requests .* a tenth of --requests"):
        leaks.run(arguments(399, quick=True))


def test_the_footprint_sees_threads_descriptors_and_memory() -> None:
    before, stop = footprint(), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    with open(os.devnull, "rb"):
        held = np.ones(2**25, np.uint8)
        during = footprint()
    stop.set()
    thread.join()
    assert (during.threads, during.descriptors) == (before.threads + 1, before.descriptors + 1)
    assert during.rss_bytes - before.rss_bytes > held.nbytes / 2
    del held
    after = footprint()
    assert after[:2] == before[:2]
    assert after.rss_bytes - before.rss_bytes < 2**24, "free memory was not given back"


def test_slope_is_growth_by_request() -> None:
    noise = [3, -2, 1, -2, 0]
    served = [100, 120, 140, 160, 180]
    sizes = [10**8 + 500 * n + e for n, e in zip(served, noise, strict=True)]
    assert slope(served, sizes) == pytest.approx(500, abs=0.1)


def test_a_dip_at_the_edge_is_no_growth() -> None:
    sizes = [10**8 - 4_500_000, *([10**8] * 25)]
    assert slope(range(600, 1016, 16), sizes) == 0


@pytest.mark.slow
def test_a_thousand_requests_leave_nothing() -> None:
    found = leaks.run(arguments(1000))
    assert found.passed, found.to_json()
