"""Serve many random requests and count what is left: nothing may be.

Reservations are looked at whenever no request runs; threads, descriptors and memory after a
warm-up, in which libraries fill the pools that they keep for good.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ostinato.bench._arguments import LeaksArguments
from ostinato.bench._fates import Fate
from ostinato.bench._footprint import Footprint, footprint, slope
from ostinato.bench._threads import threads_for, torch_threads
from ostinato.bench._traffic import Traffic
from ostinato.errors import BadInput
from ostinato.report import Comparison, Report, Target, describe_environment
from ostinato.runtime import Engine, Stacking
from ostinato.runtime.scheduler import RoundRobin
from ostinato.runtime.threads import told_threads

MIN_REQUESTS = 40
_IN_FLIGHT = 4
_WARM_UP_SHARE = 0.2
_NUM_SAMPLES = 50
# What the allocator keeps or gives back by chance between two looks; a leak of one small clip a
# request is 0.1 to 0.3 MB a request, so it stands out from the first dozen on.
_ALLOCATOR_NOISE_BYTES = 2**20
_NOTHING: Target = (Comparison.AT_MOST, 0)
_SOME: Target = (Comparison.AT_LEAST, 1)
# A processor whose batch rules forbid every stack measures nothing of stacks, and so fails.
_MUST_HAPPEN = (
    "finished",
    "cancelled",
    "failed",
    "stacked_steps",
    "cancelled_in_stacks",
    "failed_in_stacks",
    "stacks_without_room",
)


@dataclass
class _Watched:
    """The most that was found between waves, and footprints by the requests served before."""

    pages: int = 0
    pool_bytes: int = 0
    scope_holds: int = 0
    samples: dict[int, Footprint] = field(default_factory=dict[int, Footprint])


def run(arguments: LeaksArguments) -> Report:
    """Serve `requests` requests, a tenth of them when quick.

    Raises BadInput for fewer than 40, which say nothing of growth, and for a thread count that
    OSTINATO_NUM_THREADS contradicts.
    """
    num_requests = arguments.requests // 10 if arguments.quick else arguments.requests
    if num_requests < MIN_REQUESTS:
        raise BadInput(
            f"{num_requests} requests say nothing of leaks; expected at least {MIN_REQUESTS}"
            f"{' (quick serves a tenth of --requests)' if arguments.quick else ''}"
        )
    threads = threads_for(arguments.threads)
    footprint()  # refused before any work where it cannot be taken
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-leaks-") as folder,
        torch_threads(threads),
        Engine(RoundRobin(), max_batch=2 * _IN_FLIGHT, stacking=Stacking.ALWAYS) as engine,
    ):
        traffic = Traffic(engine, Path(folder), arguments.seed)
        watched = _serve(traffic, num_requests)
        stray = traffic.stray_files()
        figures = _figures(traffic, watched, len(stray))
    return Report(
        name="leaks",
        figures=figures,
        targets=_targets(num_requests, watched),
        environment={
            **describe_environment(threads),
            "threads": told_threads(traffic.tally.threads),
        },
        detail={
            "ends": [[*which, count] for which, count in sorted(traffic.tally.ends.items())],
            "stray_files": stray,
            "samples": [[served, *sample] for served, sample in watched.samples.items()],
        },
    )


def _serve(traffic: Traffic, num_requests: int) -> _Watched:
    watched, warm_up = _Watched(), int(_WARM_UP_SHARE * num_requests)
    every = max(1, (num_requests - warm_up) // _NUM_SAMPLES)
    next_sample = warm_up
    while (served := traffic.tally.requests) < num_requests:
        if served >= next_sample:
            watched.samples[served] = _look(traffic)
            next_sample = served + every
        held = traffic.wave(min(_IN_FLIGHT, num_requests - served))
        pools = [resident.pages for resident in traffic.residents]
        watched.pages = max(watched.pages, sum(pool.num_pages for pool in pools))
        watched.pool_bytes = max(watched.pool_bytes, sum(pool.num_bytes for pool in pools))
        watched.scope_holds += held
    watched.samples[num_requests] = _look(traffic)
    return watched


def _look(traffic: Traffic) -> Footprint:
    traffic.settle()
    return footprint()


def _figures(traffic: Traffic, watched: _Watched, num_stray: int) -> Mapping[str, float]:
    tally, samples = traffic.tally, list(watched.samples.values())
    served, sizes = _second_half(watched)
    return {
        "requests": tally.requests,
        "finished": tally.finished,
        "cancelled": tally.cancelled,
        "failed": tally.requests - tally.finished - tally.cancelled,
        "stacked_steps": tally.stacked_steps,
        "cancelled_in_stacks": tally.in_stacks[Fate.CANCELLED_IN_STACK],
        "failed_in_stacks": tally.in_stacks[Fate.OVERFLOWING_IN_STACK],
        "stacks_without_room": tally.in_stacks[Fate.NO_ROOM_FOR_STACK],
        "wrong_ends": tally.wrong_ends,
        "wrong_outputs": tally.wrong_outputs,
        "pages": watched.pages,
        "pool_bytes": watched.pool_bytes,
        "scope_holds": watched.scope_holds,
        "temp_files": num_stray,
        "threads_delta": samples[-1].threads - samples[0].threads,
        "file_descriptors_delta": samples[-1].descriptors - samples[0].descriptors,
        "rss_growth_bytes_per_request": slope(served, sizes),
    }


def _targets(num_requests: int, watched: _Watched) -> Mapping[str, Target]:
    served, _ = _second_half(watched)
    nothing = (
        "wrong_ends",
        "wrong_outputs",
        "pages",
        "pool_bytes",
        "scope_holds",
        "temp_files",
        "threads_delta",
        "file_descriptors_delta",
    )
    growth = _ALLOCATOR_NOISE_BYTES / (served[-1] - served[0])
    return {
        "requests": (Comparison.AT_LEAST, num_requests),
        **dict.fromkeys(_MUST_HAPPEN, _SOME),
        **dict.fromkeys(nothing, _NOTHING),
        "rss_growth_bytes_per_request": (Comparison.AT_MOST, growth),
    }


def _second_half(watched: _Watched) -> tuple[list[int], list[int]]:
    """Return requests served and resident bytes of the later samples."""
    served = list(watched.samples)
    later = served[(len(served) - 1) // 2 :]
    return later, [watched.samples[number].rss_bytes for number in later]
