"""A pool of two ranks as two processes over gloo, and a channel between two threads."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist
from numpy.typing import NDArray

from ostinato.api import Engine
from ostinato.backend.loading import process_settings
from ostinato.errors import (
    DeadlineExceeded,
    InternalError,
    NonFinite,
    OstinatoError,
    RankLost,
    RequestCancelled,
)
from ostinato.models.registry import open_model
from ostinato.request import LatentPart, Request
from ostinato.runtime import Handle, Output, Stacking
from ostinato.runtime.ranks import Channel, TorchChannel, follow
from ostinato.runtime.scheduler import RoundRobin
from support.faults import WAIT_S, Act, cancelling, doing, raising
from support.stacks import Mark, install_stacks

LATENTS = (1, 16, 1, 8, 8)  # of the small Wan's requests
# The seeds of those that meet something, each in a forward that it shares with others.
FAILING, CANCELLED, LATE, OVERFLOWING = 90_001, 90_002, 90_003, 90_004
CODES = {
    FAILING: InternalError.code,
    CANCELLED: RequestCancelled.code,
    LATE: DeadlineExceeded.code,
    OVERFLOWING: NonFinite.code,
}
SILENCE_S = 60.0  # two starting processes may share one busy core
Made = dict[str, NDArray[np.generic]]


def asked(builtin: str, wan: str) -> list[Request]:
    """Requests of two models: shapes that stack, latents of one's own, and those in `CODES`."""
    base = Request.build(model=builtin, task="text_to_video", prompt="a red circle", num_frames=12)
    base = replace(base, outputs=("video", "latents"), num_inference_steps=3, guidance_scale=2.0)
    small = replace(base, model=wan, height=64, width=64, num_frames=1, prompt="blue")
    noise = np.random.default_rng(0).standard_normal(LATENTS, np.float32)
    huge = np.full(LATENTS, 3e38, np.float32)  # finite; a sum of two is not
    builtins = [replace(base, seed=seed) for seed in (1, 2, FAILING, CANCELLED)]
    return [
        *builtins,
        replace(base, seed=LATE, deadline_s=3600.0),
        replace(small, seed=3),
        replace(small, seed=4, guidance_scale=1.0),
        replace(small, seed=5, inputs=(LatentPart(latents=noise),)),
        replace(small, seed=OVERFLOWING, inputs=(LatentPart(latents=huge),)),
    ]


def outcome(handle: Handle) -> Made:
    """Return what a request made, or the code of its error, named by its seed."""
    seed = handle.spec.seed
    try:
        output: Output = handle.result(WAIT_S)
    except OstinatoError as error:
        return {f"{seed}/code": np.array(error.code)}
    return {f"{seed}/video": output.video.frames, f"{seed}/latents": output.latents.numpy()}


class Drama:
    """Has what is in store for them happen to the requests, on every rank of this process.

    Rank 0 numbers requests as they come, so each rank knows beforehand who is who.
    """

    def __init__(self, patch: pytest.MonkeyPatch, requests: list[Request]) -> None:
        self._patch = patch
        self._requests = requests
        self._stacks = install_stacks(patch)
        self._cancelled = Future[Handle]()
        self._late_s = 0.0
        acts: dict[int, tuple[int, Act]] = {
            FAILING: (1, raising(RuntimeError("a cable was pulled"))),
            OVERFLOWING: (0, lambda op, inputs: op(**inputs)),
        }
        self._plan(acts)

    def lead(self, engine: Engine) -> Made:
        """Serve all requests, and hold what is to happen to them to have happened in stacks."""
        self._plan({CANCELLED: (1, cancelling(self._cancelled)), LATE: (1, doing(self._wait))})
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + self._late_s)
        self._patch.setattr("ostinato.runtime.core.time", clock)
        with process_settings():  # no turn is taken before all are queued
            handles = {r.seed: engine.submit(r) for r in self._requests}
        self._cancelled.set_result(handles[CANCELLED])
        found: Made = {}
        for handle in handles.values():
            handle.wait(WAIT_S)
            found |= outcome(handle)
        hit = {name for name, here in self._stacks.hit if len(here) > 1}
        assert hit == {handles[seed].request_id for seed in CODES}, "not all were in a stack"
        return found

    def _plan(self, acts: Mapping[int, tuple[int, Act]]) -> None:
        for index, request in enumerate(self._requests, 1):
            if request.seed in acts:
                plan, act = acts[request.seed]
                self._stacks.acts[Mark(f"r{index}", plan)] = act

    def _wait(self) -> None:
        """Let two hours pass."""
        self._late_s = 7200.0


def engine_of(channel: Channel) -> Engine:
    """Return rank 0's engine; in turns, all of a kind come to their stack at once."""
    return Engine(RoundRobin(), max_batch=8, stacking=Stacking.ALWAYS, channel=channel)


def start(rank: int, root: Path, folders: list[Path]) -> BaseProcess:
    """Start one rank; it writes what its requests made to `root/RANK.npz`."""
    arguments = (rank, root, folders)
    process = get_context("spawn").Process(target=_rank, args=arguments, daemon=True)
    process.start()
    return process


def _rank(rank: int, root: Path, folders: list[Path]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(root / "channel"), 2)
    where, wait = f"file://{root / 'ranks'}", timedelta(seconds=WAIT_S)
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=wait)
    channel = TorchChannel(store, silence_s=SILENCE_S)
    sources = [open_model(folder) for folder in folders]
    builtin, wan = (str(source.card.model_id) for source in sources)
    found: Made = {}
    with pytest.MonkeyPatch.context() as patch:
        drama = Drama(patch, asked(builtin, wan))
        if rank:
            follow(channel, sources, on_end=lambda handle: found.update(outcome(handle)))
        else:
            with engine_of(channel) as engine:
                for source in sources:
                    engine.add(source)
                found = drama.lead(engine)
    np.savez(root / f"{rank}.npz", **found)  # type: ignore[arg-type]
    dist.barrier()
    dist.destroy_process_group()


class QueueChannel:
    """Carries messages between two threads of one process, in order, as TorchChannel does."""

    def __init__(self, silence_s: float = 5.0) -> None:
        self.silence_s = silence_s
        self._down = queue.SimpleQueue[bytes]()
        self._up = queue.SimpleQueue[bytes]()
        self.published: list[bytes] = []

    def publish(self, data: bytes) -> None:
        self.published.append(data)
        self._down.put(data)

    def receive(self) -> bytes:
        try:
            return self._down.get(timeout=self.silence_s)
        except queue.Empty:
            raise RankLost(f"rank 0 has been silent for {self.silence_s:g} s") from None

    def answer(self, data: bytes) -> None:
        self._up.put(data)

    def answers(self, *, wait: bool) -> tuple[bytes, ...]:
        try:
            return (self._up.get(timeout=self.silence_s if wait else 0.0),)
        except queue.Empty:
            if wait:
                raise RankLost("rank 1 has not answered") from None
            return ()
