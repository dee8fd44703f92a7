"""`ostinato bench`: measure, print the figures against their targets, fail when one is missed."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol, cast

from ostinato.backend.importing import load_object
from ostinato.bench import BenchArguments, LeaksArguments
from ostinato.cli._arguments import Bench
from ostinato.cli._eval import report_result
from ostinato.cli._models import table
from ostinato.cli._progress import hide_library_bars
from ostinato.cli._result import CommandResult
from ostinato.errors import BadInput
from ostinato.report import Report


class _Benchmark(NamedTuple):
    """run: import string of what makes a Report of `arguments`, whose fields are its flags."""

    name: str
    run: str
    arguments: type[BenchArguments]
    summary: str


BENCHMARKS = (
    _Benchmark(
        "overhead",
        "ostinato.bench.overhead:run",
        BenchArguments,
        "the engine's steps against bare calls of them, its requests against diffusers",
    ),
    _Benchmark(
        "leaks",
        "ostinato.bench.leaks:run",
        LeaksArguments,
        "what --requests random requests leave behind: finished, cancelled and failed ones",
    ),
    _Benchmark(
        "cost",
        "ostinato.bench.cost:run",
        BenchArguments,
        "what the cost model predicts of a unit before it runs, on shapes seen and not seen",
    ),
    _Benchmark(
        "heartbeat",
        "ostinato.bench.heartbeat:run",
        BenchArguments,
        "how late an asyncio program wakes while an engine works, in its process and in another",
    ),
    _Benchmark(
        "schedule",
        "ostinato.bench.schedule:run",
        BenchArguments,
        "traces in real time, step by step against one request after the other and the optimum",
    ),
)


_COUNTS = ("requests", "threads")
_FLAGS = ("quick", *_COUNTS, "seed")


class _Run(Protocol):
    def __call__(self, arguments: BenchArguments) -> Report: ...


def bench(arguments: Bench) -> CommandResult:
    """Run one benchmark, or list them.

    Raises BadInput for a name that there is not, and for a flag that the benchmark does not take.
    """
    if arguments.name is None:
        rows = [(each.name, each.summary) for each in BENCHMARKS]
        document = [{"name": name, "summary": summary} for name, summary in rows]
        return CommandResult(text=table(rows), document={"benchmarks": document})
    found = {each.name: each for each in BENCHMARKS}.get(arguments.name)
    if found is None:
        known = ", ".join(each.name for each in BENCHMARKS)
        raise BadInput(f"no benchmark {arguments.name!r}; expected one of: {known}")
    given = _given(arguments, found)
    hide_library_bars()
    run = cast("_Run", load_object(found.run))
    return report_result(run(dataclasses.replace(found.arguments(), **given)))


def _given(arguments: Bench, benchmark: _Benchmark) -> dict[str, bool | int]:
    """Return what was typed; raises BadInput for what the benchmark does not take."""
    typed = {name: getattr(arguments, name) for name in _FLAGS}
    typed = {
        name: value for name, value in typed.items() if value is not None and value is not False
    }
    taken = [field.name for field in dataclasses.fields(benchmark.arguments)]
    ignored = [f"--{name}" for name in typed if name not in taken]
    if ignored:
        raise BadInput(
            f"benchmark {benchmark.name!r} takes no {', '.join(ignored)}; it takes: "
            f"{', '.join(f'--{name}' for name in _FLAGS if name in taken)}"
        )
    for name in _COUNTS:
        if typed.get(name, 1) < 1:
            raise BadInput(f"--{name} is {typed[name]}; expected at least 1")
    return typed
