"""Metrics: what Prometheus reads is what was told, and tenants cannot flood it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ostinato.runtime.scheduler import NextUnit, Outcome, UnitRecord
from ostinato.runtime.witness.metrics import OTHER_TENANTS, Metrics
from ostinato.tasks import RequestId
from ostinato.work import Resources
from support.feed import MODEL, Feed, Job, mixed

ROOT = Path(__file__).parents[3]


def read(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Return values by series name and label values in the order of label names, as read back."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            found[sample.name][tuple(v for _, v in sorted(sample.labels.items()))] = sample.value
    return found


def played(jobs: list[Job], **options: int) -> tuple[dict[str, dict[tuple[str, ...], float]], Feed]:
    metrics = Metrics(**options)
    feed = Feed(metrics, jobs).play()
    return read(metrics), feed


def test_requests_are_counted_by_how_they_ended() -> None:
    series, _ = played(mixed())
    assert series["ostinato_requests_submitted_total"] == {
        (MODEL, "batch"): 1.0,
        (MODEL, "ada"): 2.0,
        (MODEL, "bob"): 2.0,
    }
    assert series["ostinato_requests_ended_total"] == {
        (MODEL, "finished", "batch"): 1.0,
        (MODEL, "finished", "ada"): 2.0,
        (MODEL, "finished", "bob"): 1.0,
        (MODEL, "cancelled", "bob"): 1.0,
    }
    for name in ("waiting", "admitted", "running"):
        assert series[f"ostinato_requests_{name}"] == {(): 0.0}


def test_device_seconds_add_up_and_go_to_whom_they_are_due() -> None:
    series, feed = played(mixed())
    due: dict[tuple[str, ...], float] = defaultdict(float)
    for unit in feed.units:
        for tenant in unit.tenants:
            due[MODEL, tenant] += unit.device_s / len(unit.tenants)
    assert series["ostinato_device_seconds_total"] == pytest.approx(dict(due))
    assert sum(due.values()) == pytest.approx(sum(unit.device_s for unit in feed.units))


def test_a_shared_unit_is_charged_by_the_calls_that_each_brought() -> None:
    metrics = Metrics()

    class Heavy(Feed):
        """The calls of `two` count twice."""

        def _next(self, job: Job) -> NextUnit:
            return replace(super()._next(job), items=2 if job.name == "two" else 1)

    jobs = [
        Job(name="two", tenant="ada", num_units=1, unit_s=0.15, stack="s"),
        Job(name="one", tenant="bob", num_units=1, stack="s"),
    ]
    feed = Heavy(metrics, jobs).play()
    (unit,) = feed.units
    assert read(metrics)["ostinato_device_seconds_total"] == pytest.approx(
        {(MODEL, "ada"): 2 * unit.device_s / 3, (MODEL, "bob"): unit.device_s / 3}
    )


def test_units_are_counted_with_their_sizes_and_seconds() -> None:
    series, feed = played(mixed())
    kind = ("diffusion_step",)
    assert series["ostinato_unit_seconds_count"] == {kind: len(feed.units)}
    seconds = sum(unit.device_s for unit in feed.units)
    assert series["ostinato_unit_seconds_sum"][kind] == pytest.approx(seconds)
    assert series["ostinato_unit_items_sum"] == {kind: sum(unit.items for unit in feed.units)}
    alone = sum(unit.items == 1 for unit in feed.units)
    assert 0 < series["ostinato_unit_items_bucket"][(*kind, "1.0")] == alone < len(feed.units)
    load_s = sum(unit.load_s for unit in feed.units)
    assert series["ostinato_load_seconds_total"] == {(MODEL,): load_s}
    assert load_s > 0


def test_prediction_error_is_relative_to_what_was_measured() -> None:
    series, feed = played(mixed())
    errors = [abs(unit.predicted_s - unit.device_s) / unit.device_s for unit in feed.units]
    kind = ("diffusion_step",)
    assert series["ostinato_prediction_error_ratio_count"] == {kind: len(errors)}
    assert series["ostinato_prediction_error_ratio_sum"][kind] == pytest.approx(sum(errors))
    within = sum(error <= 0.1 for error in errors)
    assert series["ostinato_prediction_error_ratio_bucket"][(*kind, "0.1")] == within


def test_waits_are_timed() -> None:
    metrics = Metrics()
    jobs = [Job(name="first", num_units=2), Job(name="second", num_units=2)]
    feed = Feed(metrics, jobs, room_bytes=1.0).play()
    series = read(metrics)
    first_s, second_s = (feed.ends[name][1] for name in ("first", "second"))
    assert series["ostinato_admission_wait_seconds_sum"] == {(MODEL,): pytest.approx(first_s)}
    assert series["ostinato_admission_wait_seconds_count"] == {(MODEL,): 2.0}
    assert series["ostinato_first_unit_wait_seconds_sum"] == {(MODEL,): pytest.approx(first_s)}
    assert series["ostinato_first_unit_wait_seconds_count"] == {(MODEL,): 2.0}
    assert series["ostinato_request_seconds_sum"] == {
        (MODEL, "finished"): pytest.approx(first_s + second_s)
    }


class Looking(Metrics):
    """Reads the gauges whenever a unit has run, before it is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float, float]] = []

    def executed(self, unit: UnitRecord) -> None:
        series = read(self)
        gauges = [
            series[f"ostinato_requests_{name}"][()] for name in ("waiting", "admitted", "running")
        ]
        self.seen.append((gauges[0], gauges[1], gauges[2]))
        super().executed(unit)


def test_gauges_show_the_queue_while_a_unit_runs() -> None:
    metrics = Looking()
    Feed(metrics, [Job(name=name, num_units=1) for name in "abc"], room_bytes=2.0).play()
    assert metrics.seen == [(1.0, 2.0, 1.0), (0.0, 2.0, 1.0), (0.0, 1.0, 1.0)]


def test_memory_and_room_are_shown() -> None:
    metrics = Metrics()

    class Peek(Feed):
        """Reads the metrics when a unit's room was told."""

        def _land(self, entry) -> None:
            self.peeked = read(metrics)
            super()._land(entry)

    jobs = [Job(name="one", memory_bytes=3.0), Job(name="two", memory_bytes=2.0)]
    feed = Peek(metrics, jobs, room_bytes=8.0).play()
    assert feed.peeked["ostinato_weight_bytes"] == {(MODEL,): 1000.0}
    assert feed.peeked["ostinato_page_bytes"] == {(MODEL,): 4096.0}
    assert feed.peeked["ostinato_reserved_memory_bytes"] == {(): 2.0}
    assert feed.peeked["ostinato_room_memory_bytes"] == {(): 6.0}
    assert feed.peeked["ostinato_room_pages"] == {(): float("inf")}
    assert read(metrics)["ostinato_room_memory_bytes"] == {(): 8.0}
    assert read(metrics)["ostinato_reserved_memory_bytes"] == {(): 0.0}


def test_every_amount_has_its_gauges() -> None:
    series, _ = played([Job(name="one")])
    for prefix in ("ostinato_reserved_", "ostinato_room_"):
        assert sum(name.startswith(prefix) for name in series) == len(fields(Resources))


def test_tenants_beyond_the_limit_share_one_name() -> None:
    jobs = [Job(name=f"r{index}", tenant=f"t{index}", num_units=1) for index in range(20)]
    jobs.append(Job(name="again", tenant="t1", num_units=1))
    series, feed = played(jobs, max_tenants=3)
    assert series["ostinato_requests_submitted_total"] == {
        (MODEL, "t0"): 1.0,
        (MODEL, "t1"): 2.0,
        (MODEL, "t2"): 1.0,
        (MODEL, OTHER_TENANTS): 17.0,
    }
    assert len(series["ostinato_device_seconds_total"]) == 4
    seconds = sum(unit.device_s for unit in feed.units)
    assert sum(series["ostinato_device_seconds_total"].values()) == pytest.approx(seconds)


def test_instances_share_nothing_and_forget_who_left() -> None:
    one, two = Metrics(), Metrics()
    Feed(one, mixed()).play()
    assert read(two)["ostinato_requests_submitted_total"] == {}
    assert one._present == {}


def test_a_refused_request_is_no_request() -> None:
    metrics = Metrics()
    metrics.ended(RequestId("refused"), Outcome.FAILED, 1.0)
    assert read(metrics)["ostinato_requests_ended_total"] == {}


def test_names_follow_the_conventions_and_are_documented() -> None:
    metrics = Metrics()
    Feed(metrics, mixed()).play()
    families = list(text_string_to_metric_families(metrics.text()))
    for family in families:
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"ostinato_[a-z]+(_[a-z]+)*", family.name)
        assert not re.search(r"_(ms|us|s|mb|kb|percent|created)$", family.name)
    page = (ROOT / "docs" / "observability.md").read_text()
    shown = {f"{f.name}_total" if f.type == "counter" else f.name for f in families}
    assert set(re.findall(r"^\| `(ostinato_\w+)`", page, re.MULTILINE)) == shown
