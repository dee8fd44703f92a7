"""How well the cost model knows what a unit will take, before the unit runs.

Units are measured once, through the engine; the model is then taken through the trace in the order
in which it was made: it predicts a unit, is told what the unit took, goes on. For shapes that it
has never seen, a part of the shapes is kept from it, in turn each of them.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ostinato.bench._arguments import BenchArguments
from ostinato.bench._cost_trace import TracedUnit, trace_requests
from ostinato.bench._threads import threads_for, torch_threads
from ostinato.loop.cost import observe
from ostinato.report import Comparison, Report, Target, describe_environment
from ostinato.work import CostKey, CostModel

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "median_relative_error": (Comparison.AT_MOST, 0.10),
        "held_out_median_relative_error": (Comparison.AT_MOST, 0.25),
    }
)
WARM_UP = 50
_FOLDS = 4
_FULL_REQUESTS, _QUICK_REQUESTS = 160, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One entry, or a whole unit, against what it took; seconds.

    name: the component and op; of a unit, those of its calls. held_out: its shape was kept from
    the model. prior: what the estimate alone gives.
    """

    name: str
    key: CostKey
    held_out: bool
    predicted: float
    prior: float
    actual: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted - self.actual) / self.actual

    @property
    def prior_error(self) -> float:
        """Relative error of the estimate alone."""
        return abs(self.prior - self.actual) / self.actual


class Replayed(NamedTuple):
    """What a trace made of a model: units, and the entries that they consist of."""

    units: tuple[Judged, ...]
    entries: tuple[Judged, ...]


def run(arguments: BenchArguments) -> Report:
    """Measure on a small Wan and on the built-in model; quick takes fewer requests."""
    threads = threads_for(arguments.threads)
    num_requests = _QUICK_REQUESTS if arguments.quick else _FULL_REQUESTS
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-cost-") as folder,
        torch_threads(threads),
    ):
        traces = trace_requests(Path(folder), num_requests, arguments.seed)
    alone, held_out = judge(traces.alone, arguments.seed)
    stacked, stacked_held_out = judge((*traces.alone, *traces.stacked), arguments.seed, stacks=True)
    return Report(
        name="cost",
        figures={
            **_errors("", alone.units),
            **_errors("held_out_", held_out.units),
            **_errors("stacked_", stacked.units),
            **_errors("stacked_held_out_", stacked_held_out.units),
            "prior_median_relative_error": _median(each.prior_error for each in alone.units),
            "units": len(traces.alone),
            "stacks": len(traces.stacked),
        },
        targets=dict(TARGETS),
        environment=describe_environment(threads),
        detail={
            "warm_up_units": WARM_UP,
            "requests": num_requests,
            "by_op": by_op(alone.entries, held_out.entries),
            "by_stacked_op": by_op(stacked.entries, stacked_held_out.entries),
        },
    )


def judge(
    units: Sequence[TracedUnit], seed: int, *, stacks: bool = False
) -> tuple[Replayed, Replayed]:
    """Take a model through a trace: once told everything, and with each shape kept from it.

    Returns both after `WARM_UP` units. stacks: judge stacks alone, though all is learned from.
    """
    judged = replay(units, frozenset())
    folds = [replay(units, held_out) for held_out in folds_of(units, seed)]
    apart = Replayed(
        tuple(each for fold in folds for each in fold.units if each.held_out),
        tuple(each for fold in folds for each in fold.entries if each.held_out),
    )
    if not stacks:
        return judged, apart
    first, second = (
        Replayed(
            tuple(each for each in found.units if each.key.items > 1),
            tuple(each for each in found.entries if each.key.items > 1),
        )
        for found in (judged, apart)
    )
    return first, second


def folds_of(units: Sequence[TracedUnit], seed: int) -> tuple[frozenset[CostKey], ...]:
    """Divide the shapes of each op, so that each shape is kept from the model in one fold.

    An op of fewer shapes than folds is left out: without any shape of it, it is no op that the
    model knows.
    """
    drawn, by_op = random.Random(seed), dict[tuple[str, str, bool], dict[CostKey, None]]()
    for unit in units:
        for key, _ in unit.entries:
            by_op.setdefault((key.component, key.op, key.items > 1), {})[key] = None
    folds: list[set[CostKey]] = [set() for _ in range(_FOLDS)]
    for keys in by_op.values():
        if len(keys) >= _FOLDS:
            shuffled = drawn.sample(list(keys), k=len(keys))
            for index, key in enumerate(shuffled):
                folds[index % _FOLDS].add(key)
    return tuple(map(frozenset, folds))


def replay(units: Iterable[TracedUnit], held_out: AbstractSet[CostKey]) -> Replayed:
    """Predict, then learn, unit by unit; what has a shape in `held_out` is never learned.

    Every prediction of a unit is made before any of it is learned.
    """
    model, wholes, parts = CostModel(), list[Judged](), list[Judged]()
    for index, (entries, seconds) in enumerate(units):
        found = [
            Judged(
                name=f"{key.component}.{key.op}",
                key=key,
                held_out=key in held_out,
                predicted=model.predict(key, work),
                prior=model.prior(work),
                actual=spent,
            )
            for (key, work), spent in zip(entries, seconds, strict=True)
        ]
        if index >= WARM_UP:
            parts += found
            wholes.append(_whole(found))
        for entry, spent in zip(entries, seconds, strict=True):
            if entry.key not in held_out:
                observe(model, [entry], [spent])
    return Replayed(tuple(wholes), tuple(parts))


def by_op(judged: Sequence[Judged], held_out: Sequence[Judged]) -> list[dict[str, object]]:
    """Return a row for each op: how many, of how many shapes, and the median errors."""
    rows: list[dict[str, object]] = []
    for name in sorted({each.name for each in judged}):
        own = [each for each in judged if each.name == name]
        unseen = [each.error for each in held_out if each.name == name]
        rows.append(
            {
                "op": name,
                "measured": len(own),
                "shapes": len({each.key for each in own}),
                "median_s": _median(each.actual for each in own),
                "median_relative_error": _median(each.error for each in own),
                "held_out_median_relative_error": _median(unseen) if unseen else None,
                "prior_median_relative_error": _median(each.prior_error for each in own),
            }
        )
    return rows


def _whole(entries: Sequence[Judged]) -> Judged:
    """Return a unit as one: what its entries took together, under its first call's key."""
    return Judged(
        name="+".join(each.name for each in entries),
        key=entries[0].key,
        held_out=entries[0].held_out,
        predicted=sum(each.predicted for each in entries),
        prior=sum(each.prior for each in entries),
        actual=sum(each.actual for each in entries),
    )


def _errors(prefix: str, judged: Sequence[Judged]) -> dict[str, float]:
    """Return median and 90th percentile; nothing where nothing was judged."""
    if not judged:
        return {}
    errors = sorted(each.error for each in judged)
    return {
        f"{prefix}median_relative_error": _median(errors),
        f"{prefix}p90_relative_error": errors[int(0.9 * (len(errors) - 1))],
    }


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)
