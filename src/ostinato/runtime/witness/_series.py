"""The series that `Metrics` fills: names, labels, buckets, and the gauges read at a scrape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ostinato.runtime.scheduler import Level
from ostinato.tasks import RequestId
from ostinato.work import Resources

# Each bucket doubles: what is measured spans a kernel of a small model and a clip of a large one.
_UNIT_BUCKETS_S = tuple(0.001 * 2**power for power in range(18))  # 1 ms to 131 s
_WAIT_BUCKETS_S = tuple(0.01 * 2**power for power in range(19))  # 10 ms to 44 min
_ERROR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 4.0)
_ITEM_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

_UNITS_OF_RESOURCES = (
    ("compute_s", "compute_seconds", "predicted device-seconds"),
    ("memory_bytes", "memory_bytes", "bytes of weights and activations"),
    ("pages", "pages", "K/V pages"),
    ("transfer_bytes", "transfer_bytes", "bytes that have to move"),
    ("sink_bytes", "sink_bytes", "bytes of finished output"),
)


@dataclass(slots=True, eq=False)
class Gauges(Collector):
    """What is true now, read when somebody asks."""

    waiting: set[RequestId] = field(default_factory=set[RequestId])
    admitted: set[RequestId] = field(default_factory=set[RequestId])
    running: set[RequestId] = field(default_factory=set[RequestId])
    level: Level | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield one family after the other; those of the engine's level once it is known."""
        for name, requests, meaning in (
            ("waiting", self.waiting, "Requests that wait for admission."),
            ("admitted", self.admitted, "Requests that were admitted and have not ended."),
            ("running", self.running, "Requests whose unit is on a device."),
        ):
            yield GaugeMetricFamily(f"ostinato_requests_{name}", meaning, value=len(requests))
        if self.level is not None:
            yield _by_model("weight_bytes", "Bytes of resident weights.", self.level.weight_bytes)
            yield _by_model("page_bytes", "Bytes of K/V pages in use.", self.level.page_bytes)
            yield from _amounts("reserved", "Set aside", self.level.reserved)
            yield from _amounts("room", "Not set aside", self.level.room)


class Series:
    """What only grows, one registry an instance."""

    def __init__(self, gauges: Gauges) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(gauges)
        self.submitted = Counter(
            "ostinato_requests_submitted",
            "Requests that came.",
            ("model", "tenant"),
            registry=registry,
        )
        self.ended = Counter(
            "ostinato_requests_ended",
            "Requests that ended.",
            ("model", "tenant", "outcome"),
            registry=registry,
        )
        self.request_s = _seconds(
            registry, "request_seconds", "Submission to end.", ("model", "outcome"), _WAIT_BUCKETS_S
        )
        self.admission_wait_s = _seconds(
            registry,
            "admission_wait_seconds",
            "Submission to admission.",
            ("model",),
            _WAIT_BUCKETS_S,
        )
        self.first_unit_wait_s = _seconds(
            registry,
            "first_unit_wait_seconds",
            "Submission to the begin of the first unit.",
            ("model",),
            _WAIT_BUCKETS_S,
        )
        self._make_unit_series(registry)

    def text(self) -> str:
        """Return all series in Prometheus's text format, version 0.0.4."""
        return generate_latest(_WithoutBirths(self.registry)).decode()

    def _make_unit_series(self, registry: CollectorRegistry) -> None:
        self.unit_s = _seconds(
            registry, "unit_seconds", "Device-seconds of a unit.", ("kind",), _UNIT_BUCKETS_S
        )
        self.unit_items = Histogram(
            "ostinato_unit_items",
            "Calls that ran as one unit.",
            ("kind",),
            buckets=_ITEM_BUCKETS,
            registry=registry,
        )
        self.prediction_error = Histogram(
            "ostinato_prediction_error_ratio",
            "How far a unit's predicted seconds were off, as a part of the measured ones.",
            ("kind",),
            buckets=_ERROR_BUCKETS,
            registry=registry,
        )
        self.device_s = Counter(
            "ostinato_device_seconds",
            "Device-seconds of units.",
            ("model", "tenant"),
            registry=registry,
        )
        self.load_s = Counter(
            "ostinato_load_seconds",
            "Seconds spent on loading weights.",
            ("model",),
            registry=registry,
        )


@dataclass(frozen=True, slots=True)
class _WithoutBirths(Collector):
    """Leaves out when each series began: nobody asks, and it is a series more for each."""

    registry: CollectorRegistry

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


def _seconds(
    registry: CollectorRegistry,
    name: str,
    meaning: str,
    labels: tuple[str, ...],
    buckets: tuple[float, ...],
) -> Histogram:
    return Histogram(f"ostinato_{name}", meaning, labels, buckets=buckets, registry=registry)


def _by_model(name: str, meaning: str, sizes: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"ostinato_{name}", meaning, labels=("model",))
    for model, size in sizes.items():
        family.add_metric((model,), size)
    return family


def _amounts(name: str, meaning: str, amounts: Resources) -> Iterator[Metric]:
    for part, suffix, what in _UNITS_OF_RESOURCES:
        amount: float = getattr(amounts, part)
        yield GaugeMetricFamily(f"ostinato_{name}_{suffix}", f"{meaning}: {what}.", value=amount)
