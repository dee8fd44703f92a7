"""The heartbeat: late when something holds the interpreter; a report with its targets."""

from __future__ import annotations

import asyncio
import time

import torch

from ostinato.bench import heartbeat
from ostinato.bench._small_wan import ClipSize
from ostinato.bench.heartbeat import Heard
from ostinato.report import Report

SIZE = ClipSize(height=16, width=16, step_s=0.09)


def report(remote_late_s: list[float], latents: float = 1.0) -> Report:
    here = Heard([0.2, 0.3], [torch.ones(2)])
    remote = Heard(remote_late_s, [torch.full((2,), latents)])
    figures = heartbeat._figures(SIZE, [0.001], here, remote)
    return Report(name="heartbeat", figures=figures, targets=heartbeat.targets(), environment={})


def test_a_busy_loop_is_late_and_a_quiet_one_is_not() -> None:
    async def main(busy_s: float) -> list[float]:
        late_s: list[float] = []
        beats = asyncio.create_task(heartbeat._beat(late_s))
        await asyncio.sleep(0.05)
        time.sleep(busy_s)
        await asyncio.sleep(0.05)
        beats.cancel()
        return late_s

    assert max(asyncio.run(main(0.4))) > 0.35
    assert min(asyncio.run(main(0.0))) < 0.35


def test_figures_are_milliseconds_and_held_against_targets() -> None:
    found = report([0.001] * 99 + [0.1])
    assert found.passed
    assert found.figures["remote_max_ms"] == 100
    assert found.figures["in_process_max_ms"] == 300
    assert found.figures["idle_p50_ms"] == 1
    assert found.figures["step_ms"] == 90


def test_what_is_late_or_differs_misses() -> None:
    assert not report([0.001] * 99 + [0.151]).meets("remote_max_ms")
    assert not report([0.051] * 99).meets("remote_p99_ms")
    assert not report([0.001], latents=2.0).meets("different_outputs")
