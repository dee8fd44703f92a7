"""The leak count: it passes on our engine, and whatever is left makes it miss."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ostinato.bench import leaks
from ostinato.bench._arguments import LeaksArguments
from ostinato.bench._fates import Fate, Tally
from ostinato.bench._footprint import Footprint, footprint, slope
from ostinato.bench._stacks import Stacks
from ostinato.bench._traffic import Traffic
from ostinato.errors import BadInput
from ostinato.memory import KVPool
from ostinato.report import Report
from ostinato.runtime import Engine

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs Linux")
REQUESTS = 60
MUST_BE_NOTHING = (
    "wrong_ends",
    "wrong_outputs",
    "pages",
    "pool_bytes",
    "scope_holds",
    "temp_files",
    "threads_delta",
    "file_descriptors_delta",
)


def arguments(requests: int = REQUESTS, *, quick: bool = False) -> LeaksArguments:
    return LeaksArguments(requests=requests, quick=quick, seed=5, threads=1)


MUST_HAPPEN = (
    "finished",
    "cancelled",
    "failed",
    "stacked_steps",
    "cancelled_in_stacks",
    "failed_in_stacks",
    "stacks_without_room",
)


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
    ends = json.loads(report.to_json())["detail"]["ends"]
    assert {fate for fate, _, _ in ends} == set(Fate)
    assert sum(count for _, _, count in ends) == REQUESTS


RIGHT_ENDS = {
    Fate.PLAIN: {"finished"},
    Fate.SAVED: {"finished"},
    Fate.TORN: {"finished"},
    Fate.CANCELLED: {"cancelled", "finished"},
    Fate.LATE: {"deadline_exceeded"},
    Fate.OVERFLOWING: {"non_finite"},
    Fate.UNREADABLE: {"invalid_checkpoint"},
    Fate.CANCELLED_IN_STACK: {"cancelled"},
    Fate.OVERFLOWING_IN_STACK: {"non_finite"},
    Fate.NO_ROOM_FOR_STACK: {"finished"},
    Fate.CANCELLED_IN_STACK: {"cancelled"},
    Fate.OVERFLOWING_IN_STACK: {"non_finite"},
    Fate.NO_ROOM_FOR_STACK: {"finished"},
}


@pytest.mark.parametrize("fate", Fate)
def test_an_end_is_held_against_the_fate(fate: Fate) -> None:
    for end in {"internal", *(end for ends in RIGHT_ENDS.values() for end in ends)}:
        tally = Tally(ends=Counter({(fate, end): 2}))
        assert tally.wrong_ends == (0 if end in RIGHT_ENDS[fate] else 2), end


def test_stacks_were_met_with_all_that_may_happen_in_them(report: Report) -> None:
    ends = {(fate, end): n for fate, end, n in json.loads(report.to_json())["detail"]["ends"]}
    figures = report.figures
    assert figures["stacked_steps"] > 2
    assert figures["cancelled_in_stacks"] == ends[Fate.CANCELLED_IN_STACK, "cancelled"] > 0
    assert figures["failed_in_stacks"] == ends[Fate.OVERFLOWING_IN_STACK, "non_finite"] > 0
    assert figures["stacks_without_room"] == ends[Fate.NO_ROOM_FOR_STACK, "finished"] > 0


@pytest.mark.parametrize(("size", "found"), [(3, True), (2, False)])
def test_what_happens_in_a_stack_happens_once_and_only_in_a_full_one(
    size: int, found: bool
) -> None:
    stacks, happened = Stacks(), list[int]()
    stack = stacks.around(lambda items: [{}] * len(items))
    stacks.arm(3, lambda: happened.append(1))
    stack([{}] * size)
    stack([{}] * size)
    assert (happened, stacks.disarm()) == ([1] if found else [], found)
    stack([{}] * 3)
    assert len(happened) == found, "it was disarmed"


def test_in_a_stack_that_rules_forbid_nothing_happens() -> None:
    stacks = Stacks()
    stacks.arm(2, lambda: pytest.fail("there was no stack"))
    assert stacks.around(lambda items: None)([{}, {}]) is None
    assert not stacks.disarm()


def test_ordinary_requests_that_fail_miss_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold nothing, and enough others fail, are cancelled and finish."""

    class Broken(Traffic):
        def __init__(self, engine: Engine, folder: Path, seed: int) -> None:
            super().__init__(engine, folder, seed)
            self._plain = (self._plain[0], self._overflowing, *self._plain[2:])

    monkeypatch.setattr(leaks, "Traffic", Broken)
    found = leaks.run(arguments(leaks.MIN_REQUESTS))
    assert found.figures["wrong_ends"] > 0
    missed = {figure for figure in found.targets if not found.meets(figure)}
    assert missed - {"rss_growth_bytes_per_request"} == {"wrong_ends"}


def test_the_report_is_one_line_of_json(report: Report) -> None:
    document = json.loads(report.to_json())
    assert document["name"] == "leaks"
    assert set(document["targets"]) == set(document["figures"])
    served = [row[0] for row in document["detail"]["samples"]]
    assert served == sorted(served)
    assert served[-1] == REQUESTS
    assert document["environment"]["threads"] == "1"


@pytest.mark.parametrize("name", [*MUST_BE_NOTHING, "rss_growth_bytes_per_request"])
def test_whatever_is_left_misses_its_target(name: str) -> None:
    """A megabyte over the requests of the second half is what an allocator does by itself."""
    samples = {served: Footprint(4, 9, 10**8) for served in range(20, 101, 4)}
    targets = leaks._targets(100, leaks._Watched(samples=samples))
    clean = {figure: 0.0 for figure in MUST_BE_NOTHING} | {
        "requests": 100,
        **dict.fromkeys(MUST_HAPPEN, 1),
        "rss_growth_bytes_per_request": 2**20 / 40,
    }

    def judged(figures: Mapping[str, float]) -> bool:
        return Report(name="leaks", figures=figures, targets=targets, environment={}).passed

    assert judged(clean)
    assert not judged({**clean, name: clean[name] + 1})
    for happened in ("requests", *MUST_HAPPEN):
        assert not judged({**clean, happened: 0}), "a run in which nothing happens proves nothing"


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
