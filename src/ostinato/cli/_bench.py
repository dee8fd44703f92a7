"""`ostinato bench`: measure, print the figures against their targets, fail when one is missed."""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

from ostinato.backend.importing import load_object
from ostinato.bench import BenchArguments
from ostinato.cli._arguments import Bench
from ostinato.cli._eval import report_result
from ostinato.cli._models import table
from ostinato.cli._progress import hide_library_bars
from ostinato.cli._result import CommandResult
from ostinato.errors import BadInput
from ostinato.report import Report


class _Benchmark(NamedTuple):
    """run: import string of `(BenchArguments) -> Report`."""

    name: str
    run: str
    summary: str


BENCHMARKS = (
    _Benchmark(
        "overhead",
        "ostinato.bench.overhead:run",
        "the engine's steps against bare calls of them, its requests against diffusers",
    ),
    _Benchmark(
        "leaks",
        "ostinato.bench.leaks:run",
        "what --requests random requests leave behind: finished, cancelled and failed ones",
    ),
    _Benchmark(
        "cost",
        "ostinato.bench.cost:run",
        "what the cost model predicts of a unit before it runs, on shapes seen and not seen",
    ),
    _Benchmark(
        "heartbeat",
        "ostinato.bench.heartbeat:run",
        "how late an asyncio program wakes while an engine works, in its process and in another",
    ),
)


class _Run(Protocol):
    def __call__(self, arguments: BenchArguments) -> Report: ...


def bench(arguments: Bench) -> CommandResult:
    """Run one benchmark, or list them; raises BadInput for a name that there is not."""
    if arguments.name is None:
        rows = [(each.name, each.summary) for each in BENCHMARKS]
        document = [{"name": name, "summary": summary} for name, summary in rows]
        return CommandResult(text=table(rows), document={"benchmarks": document})
    found = {each.name: each for each in BENCHMARKS}.get(arguments.name)
    if found is None:
        known = ", ".join(each.name for each in BENCHMARKS)
        raise BadInput(f"no benchmark {arguments.name!r}; expected one of: {known}")
    for flag, count in (("--requests", arguments.requests), ("--threads", arguments.threads)):
        if count < 1:
            raise BadInput(f"{flag} is {count}; expected at least 1")
    hide_library_bars()
    run = cast("_Run", load_object(found.run))
    report = run(
        BenchArguments(
            quick=arguments.quick,
            requests=arguments.requests,
            seed=arguments.seed,
            threads=arguments.threads,
        )
    )
    return report_result(report)
