"""The record of decisions: it comes back equal from a file, and replays to the same decisions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.errors import BadInput
from ostinato.runtime.scheduler import FairShare, FifoRequest, Policy, ShortestRemaining
from ostinato.runtime.witness import DecisionLog, Replay, read_decisions, replay
from support.feed import Feed, mixed


def recorded(policy: Policy, *, room_bytes: float = 2.0) -> DecisionLog:
    log = DecisionLog()
    Feed(log, mixed(), policy=policy, room_bytes=room_bytes).play()
    return log


@pytest.mark.parametrize("policy", [FairShare(), FifoRequest(), ShortestRemaining()])
def test_the_same_policy_decides_the_same(policy: Policy) -> None:
    records = recorded(policy).records
    assert replay(records, policy) == Replay(num_ticks=len(records), num_different=0, first=None)
    assert len(records) > 20


def test_another_policy_differs_and_the_first_tick_is_named() -> None:
    records = recorded(FairShare()).records
    found = replay(records, FifoRequest())
    assert found.num_ticks == len(records)
    assert 1 < found.num_different < len(records)
    assert found.first is not None
    assert found.first.recorded != found.first.replayed
    index = next(i for i, r in enumerate(records) if r.snapshot.tick == found.first.tick)
    assert replay(records[:index], FifoRequest()).num_different == 0
    assert replay(records[index : index + 1], FifoRequest()).num_different == 1


def test_a_file_comes_back_equal_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    for room_bytes in (2.0, float("inf")):  # the other amounts are not managed: infinite
        log = recorded(FairShare(), room_bytes=room_bytes)
        log.save(path)
        assert tuple(read_decisions(path)) == log.records
        assert replay(read_decisions(path), FairShare()).num_different == 0
    assert list(tmp_path.iterdir()) == [path]


def test_memory_is_bounded_and_the_file_has_all(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, num_ticks=5)
    Feed(log, mixed()).play()
    in_file = tuple(read_decisions(path))
    assert log.records == in_file[-5:]
    assert [record.snapshot.tick for record in in_file] == list(range(len(in_file)))
    log.close()
    Feed(log, mixed()).play()  # kept in memory, written no more
    assert tuple(read_decisions(path)) == in_file


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, file_bytes=10_000)
    Feed(log, mixed()).play()
    before = tmp_path / "decisions.jsonl.1"
    assert sorted(tmp_path.iterdir()) == [path, before]
    assert 0 < path.stat().st_size <= 10_000
    assert 0 < before.stat().st_size <= 10_000
    kept = (*read_decisions(before), *read_decisions(path))
    assert kept == log.records[-len(kept) :]
    log.close()


def test_an_earlier_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b'{"snapshot"')  # what a crash can leave
    log = DecisionLog(path)
    Feed(log, mixed()).play()
    log.close()
    assert tuple(read_decisions(path)) == log.records
    assert tuple(read_decisions(path.with_name("decisions.jsonl.1"))) == ()


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = recorded(FairShare())
    log.save(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert tuple(read_decisions(path)) == log.records[:-1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: [],
        lambda document: {"decision": document["decision"]},
        lambda document: {**document, "snapshot": 1},
        lambda document: {**document, "snapshot": {**document["snapshot"], "room": None}},
        lambda document: {**document, "snapshot": {**document["snapshot"], "tick": "x"}},
        lambda document: {**document, "mood": "good"},
        lambda document: {**document, "decision": {**document["decision"], "mood": "good"}},
        lambda document: {**document, "snapshot": {**document["snapshot"], "room": {"luck": 1}}},
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, spoil) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(FairShare()).save(path)
    first, second, *_ = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(spoil(json.loads(second)))}\n")
    with pytest.raises(BadInput, match=r"line 2 of '.*decisions.jsonl'"):
        tuple(read_decisions(path))
    path.write_text(f"{first}\nnonsense\n")
    with pytest.raises(BadInput, match="line 2"):
        tuple(read_decisions(path))
