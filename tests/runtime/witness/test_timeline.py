"""The timeline: what is written reads back as the units and requests that were told."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import OutputNotWritten
from ostinato.runtime.witness import Timeline
from support.feed import Feed, Job, mixed

Event = dict[str, Any]  # JSON
US = 1e-3  # the format's resolution, in microseconds


def events_of(timeline: Timeline, phase: str) -> list[Event]:
    return [e for e in json.loads(timeline.to_json())["traceEvents"] if e["ph"] == phase]


def slices_of(timeline: Timeline) -> dict[str, list[tuple[str, float, float, int]]]:
    """Return each request's slices as (name, begin, end, depth), read the way Perfetto does."""
    found: dict[str, list[tuple[str, float, float, int]]] = defaultdict(list)
    stacks: dict[str, list[Event]] = defaultdict(list)
    document = json.loads(timeline.to_json())
    ordered = sorted(document["traceEvents"], key=lambda event: event.get("ts", 0.0))
    for event in ordered:
        if event["ph"] == "b":
            stacks[event["id"]].append(event)
        elif event["ph"] == "e":
            begin = stacks[event["id"]].pop()
            assert begin["name"] == event["name"]
            depth = len(stacks[event["id"]])
            found[event["id"]].append((event["name"], begin["ts"], event["ts"], depth))
    assert not any(stacks.values())
    return found


def test_every_unit_is_one_slice_on_its_device() -> None:
    timeline = Timeline()
    feed = Feed(timeline, mixed(), num_devices=2).play()
    slices = events_of(timeline, "X")
    assert len(slices) == len(feed.units)
    for event, unit in zip(slices, feed.units, strict=True):
        assert event["tid"] == unit.device
        assert event["name"] == "transformer.forward"
        assert event["cat"] == "diffusion_step"
        assert event["ts"] == pytest.approx(1e6 * unit.start_s, abs=US)
        assert event["args"] == {
            "model": "builtin",
            "tick": unit.tick,
            "requests": list(unit.request_ids),
            "tenants": list(unit.tenants),
            "nodes": list(unit.nodes),
            "items": unit.items,
            "predicted_s": unit.predicted_s,
            "device_s": unit.device_s,
            "load_s": unit.load_s,
        }
    assert any(event["args"]["items"] > 1 for event in slices)


def test_a_device_does_one_thing_at_a_time_and_no_second_is_lost() -> None:
    timeline = Timeline()
    feed = Feed(timeline, mixed(), num_devices=2).play()
    by_device: dict[int, list[Event]] = defaultdict(list)
    for event in events_of(timeline, "X"):
        by_device[event["tid"]].append(event)
    assert sorted(by_device) == [0, 1]
    for device, slices in by_device.items():
        slices.sort(key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + US for a, b in pairwise(slices))
        seconds = sum(unit.device_s for unit in feed.units if unit.device == device)
        assert sum(e["dur"] for e in slices) == pytest.approx(1e6 * seconds, abs=len(slices) * US)


def test_a_request_has_one_track_from_submission_to_end() -> None:
    timeline = Timeline()
    feed = Feed(timeline, mixed()).play()
    tracks = slices_of(timeline)
    assert sorted(tracks) == sorted(job.name for job in mixed())
    for job in mixed():
        whole, wait, *turns = sorted(tracks[job.name], key=lambda s: (s[3], s[1], s[2]))
        assert whole[:2] == (f"request {job.name}", pytest.approx(1e6 * job.arrived_s))
        assert whole[2] == pytest.approx(1e6 * feed.ends[job.name][1])
        assert wait[0] == "waits for admission"
        mine = [unit for unit in feed.units if job.name in unit.request_ids]
        assert [turn[0] for turn in turns] == ["denoise"] * len(mine)
        for (_, begin, end, depth), unit in zip(turns, mine, strict=True):
            assert depth == 1
            assert begin == pytest.approx(1e6 * unit.start_s, abs=US)
            assert end == pytest.approx(1e6 * unit.end_s, abs=US)


def test_the_wait_for_admission_ends_with_it() -> None:
    timeline = Timeline()
    jobs = [Job(name="first", num_units=2), Job(name="second", num_units=2)]
    feed = Feed(timeline, jobs, room_bytes=1.0).play()
    waits = {
        name: end - begin
        for name, slices in slices_of(timeline).items()
        for slice_name, begin, end, _ in slices
        if slice_name == "waits for admission"
    }
    assert waits == {"first": 0.0, "second": pytest.approx(1e6 * feed.ends["first"][1])}


def test_tracks_say_what_they_are() -> None:
    timeline = Timeline()
    Feed(timeline, mixed(), num_devices=2).play()
    names = {(e["name"], e["pid"], e["tid"]): e["args"] for e in events_of(timeline, "M")}
    assert names["thread_name", 1, 0] == {"name": "device 0"}
    assert names["thread_name", 1, 1] == {"name": "device 1"}
    assert names["process_name", 1, 0] == {"name": "ostinato: devices"}
    assert names["process_name", 2, 0] == {"name": "ostinato: requests"}
    whole = {e["id"]: e["args"] for e in events_of(timeline, "b") if "args" in e}
    assert whole["c"] == {"model": "builtin", "tenant": "bob", "outcome": "cancelled"}
    assert whole["a"] == {"model": "builtin", "tenant": "ada", "outcome": "finished"}


def test_only_the_latest_is_kept_and_still_reads_well() -> None:
    timeline = Timeline(num_units=4, num_requests=2)
    feed = Feed(timeline, mixed()).play()
    assert [e["args"]["tick"] for e in events_of(timeline, "X")] == [u.tick for u in feed.units][
        -4:
    ]
    last = sorted(feed.ends, key=lambda name: feed.ends[name][1])[-2:]
    assert sorted(slices_of(timeline)) == sorted(last)
    assert min(e["ts"] for e in events_of(timeline, "X") + events_of(timeline, "b")) == 0.0


def test_a_request_that_still_runs_ends_with_what_is_known() -> None:
    class Leaves(Exception):
        """The feed stops in the middle."""

    class Half(Timeline):
        def executed(self, unit) -> None:
            super().executed(unit)
            if unit.tick > 6:
                raise Leaves

    timeline = Half()
    feed = Feed(timeline, mixed())
    with pytest.raises(Leaves):
        feed.play()
    whole = {e["id"]: e["args"]["outcome"] for e in events_of(timeline, "b") if "args" in e}
    assert whole["long"] == "running"
    latest = 1e6 * feed.units[-1].end_s
    assert max(end for *_, end, _ in slices_of(timeline)["long"]) == pytest.approx(latest, abs=US)


def test_an_empty_timeline_is_a_trace() -> None:
    assert events_of(Timeline(), "X") == []


def test_it_is_saved_in_one_step(tmp_path: Path) -> None:
    timeline = Timeline()
    Feed(timeline, mixed()).play()
    path = tmp_path / "trace.json"
    path.write_text("before")
    timeline.save(path)
    assert path.read_bytes() == timeline.to_json()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputNotWritten, match=r"no.json"):
        timeline.save(tmp_path / "missing" / "no.json")
