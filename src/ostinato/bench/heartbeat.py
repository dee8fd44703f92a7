"""How late an asyncio program wakes while four requests run: the reason for an engine process.

A coroutine asks to be woken every 5 ms and notes by how much it was late: with nothing to do, with
the engine on a thread of the same process, and with the engine in a process of its own. The program
follows all events of all requests meanwhile, as a server does.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ostinato.bench._arguments import BenchArguments
from ostinato.bench._small_wan import PROMPT, ClipSize, calibrate, nearest, write_small_wan
from ostinato.bench._threads import threads_for, torch_threads
from ostinato.card import ModelSource
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import EULER
from ostinato.report import Comparison, Report, Target, describe_environment
from ostinato.request import Request
from ostinato.runtime import Engine, ResidentModel
from ostinato.runtime.follow import follow
from ostinato.runtime.protocol import EngineProtocol, RequestHandle
from ostinato.runtime.remote import BLANK_ENGINE, RemoteEngine
from ostinato.tasks import OutputName, TaskType

INTERVAL_S = 5e-3
NUM_REQUESTS = 4
_STEP_S = 0.1
_STEPS, _QUICK_STEPS = 40, 8
_IDLE_S, _QUICK_IDLE_S = 5.0, 1.0
# A step of half the length that is asked for still outlasts the 50 ms that are promised.
_LEAST_STEP_MS = 50.0
_P99_MS, _MAX_MS = 50.0, 150.0


class Heard(NamedTuple):
    """Seconds by which each beat was late, and the latents of each request."""

    late_s: list[float]
    latents: list[torch.Tensor]


def run(arguments: BenchArguments) -> Report:
    """Listen to the heartbeat three times; a fifth of the steps when quick."""
    threads = threads_for(arguments.threads)
    num_steps = _QUICK_STEPS if arguments.quick else _STEPS
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-heartbeat-") as folder,
        torch_threads(threads),
    ):
        source = open_model(write_small_wan(Path(folder) / "wan", EULER, arguments.seed))
        size = nearest(calibrate(ResidentModel(source), _STEP_S), _STEP_S)
        requests = _requests(source, size, num_steps)
        idle = asyncio.run(_idle(_QUICK_IDLE_S if arguments.quick else _IDLE_S))
        with Engine() as engine:
            here = _listen(engine, source, requests)
        with RemoteEngine(BLANK_ENGINE) as engine:  # and no file of costs, as the one before
            remote = _listen(engine, source, requests)
    return Report(
        name="heartbeat",
        figures=_figures(size, idle, here, remote),
        targets=targets(),
        environment=describe_environment(threads),
        detail={"height": size.height, "width": size.width, "steps": num_steps},
    )


def targets() -> Mapping[str, Target]:
    """Return what the engine process must keep; the others are there to compare with."""
    return {
        "step_ms": (Comparison.AT_LEAST, _LEAST_STEP_MS),
        "remote_p99_ms": (Comparison.AT_MOST, _P99_MS),
        "remote_max_ms": (Comparison.AT_MOST, _MAX_MS),
        "different_outputs": (Comparison.AT_MOST, 0),
    }


def _figures(
    size: ClipSize, idle: Sequence[float], here: Heard, remote: Heard
) -> Mapping[str, float]:
    pairs = zip(here.latents, remote.latents, strict=True)
    return {
        "step_ms": 1e3 * size.step_s,
        "beats": len(remote.late_s),
        **_lateness("remote", remote.late_s),
        **_lateness("in_process", here.late_s),
        **_lateness("idle", idle),
        "different_outputs": sum(not torch.equal(one, other) for one, other in pairs),
    }


def _lateness(name: str, late_s: Sequence[float]) -> dict[str, float]:
    median, p99, most = (1e3 * float(np.quantile(late_s, q)) for q in (0.5, 0.99, 1.0))
    return {f"{name}_p50_ms": median, f"{name}_p99_ms": p99, f"{name}_max_ms": most}


def _requests(source: ModelSource, size: ClipSize, num_steps: int) -> list[Request]:
    return [
        Request(
            model=source.card.model_id,
            task=TaskType.TEXT_TO_VIDEO,
            prompt=PROMPT,
            seed=seed,
            height=size.height,
            width=size.width,
            num_frames=1,
            num_inference_steps=num_steps,
            guidance_scale=1.0,
            outputs=(OutputName.LATENTS,),
        )
        for seed in range(NUM_REQUESTS)
    ]


def _listen(engine: EngineProtocol, source: ModelSource, requests: Sequence[Request]) -> Heard:
    engine.add(source)
    engine.run(requests[:1])  # weights and libraries are loaded
    return asyncio.run(_serve(engine, requests))


async def _serve(engine: EngineProtocol, requests: Sequence[Request]) -> Heard:
    late_s: list[float] = []
    beats = asyncio.create_task(_beat(late_s))
    handles = [await asyncio.to_thread(engine.submit, request) for request in requests]
    await asyncio.gather(*(_to_the_end(handle) for handle in handles))
    beats.cancel()
    return Heard(late_s, [handle.result().latents for handle in handles])


async def _to_the_end(handle: RequestHandle) -> None:
    async for _ in follow(handle):
        pass


async def _idle(seconds: float) -> list[float]:
    late_s: list[float] = []
    beats = asyncio.create_task(_beat(late_s))
    await asyncio.sleep(seconds)
    beats.cancel()
    return late_s


async def _beat(late_s: list[float]) -> None:
    """Note, until cancelled, how late each waking is."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        late_s.append(loop.time() - due)
