"""A pool of two ranks as two processes over gloo, and a channel between two threads."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from numpy.typing import NDArray

from ostinato.api import Engine
from ostinato.card import ModelSource
from ostinato.errors import OstinatoError, RankLost
from ostinato.models.registry import open_model
from ostinato.request import LatentPart, Request
from ostinato.runtime import Handle, Output
from ostinato.runtime.ranks import TorchChannel, follow
from support.faults import WAIT_S, Acts, cancelling, doing, install_acts, raising

FAILING, CANCELLED = 90_001, 90_002  # the seeds of those that meet something
SILENCE_S = 60.0  # two starting processes may share one busy core


def asked(builtin: str, wan: str, latents: NDArray[np.float32]) -> list[Request]:
    """Requests of two models: shapes that stack, latents of one's own, a fault, a cancellation."""
    base = Request.build(model=builtin, task="text_to_video", prompt="a red circle", num_frames=12)
    base = replace(base, outputs=("video", "latents"), num_inference_steps=3, guidance_scale=2.0)
    small = replace(base, model=wan, height=32, width=32, num_frames=1, prompt="blue")
    own = replace(small, inputs=(LatentPart(latents=latents),), seed=5)
    builtins = [replace(base, seed=seed) for seed in (1, 2, FAILING, CANCELLED)]
    return [*builtins, replace(small, seed=3), replace(small, seed=4, guidance_scale=1.0), own]


def outcome(handle: Handle) -> dict[str, NDArray[np.generic]]:
    """Return what a request made, or the code of its error."""
    try:
        output: Output = handle.result(WAIT_S)
    except OstinatoError as error:
        return {"code": np.array(error.code)}
    return {"video": output.video.frames, "latents": output.latents.numpy()}


def start(rank: int, root: Path, folders: list[Path], latents: NDArray[np.float32]) -> BaseProcess:
    """Start one rank; it writes what its requests made to `root/RANK.npz`."""
    arguments = (rank, root, folders, latents)
    process = get_context("spawn").Process(target=_rank, args=arguments, daemon=True)
    process.start()
    return process


def _rank(rank: int, root: Path, folders: list[Path], latents: NDArray[np.float32]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(root / "channel"), 2)
    where, wait = f"file://{root / 'ranks'}", timedelta(seconds=WAIT_S)
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=wait)
    channel = TorchChannel(store, silence_s=SILENCE_S)
    sources = [open_model(folder) for folder in folders]
    with pytest.MonkeyPatch.context() as patch:
        acts, found = install_acts(patch), dict[str, NDArray[np.generic]]()
        acts.plan(FAILING, {2: raising(RuntimeError("a cable was pulled"))})
        acts.plan(CANCELLED, {})

        def keep(handle: Handle) -> None:
            made = outcome(handle)
            found.update({f"{handle.spec.seed}/{name}": value for name, value in made.items()})

        if rank:
            follow(channel, sources, on_end=keep)
        else:
            _lead(channel, sources, latents, acts, keep)
    np.savez(root / f"{rank}.npz", **found)  # type: ignore[arg-type]
    dist.barrier()
    dist.destroy_process_group()


def _lead(
    channel: TorchChannel,
    sources: list[ModelSource],
    latents: NDArray[np.float32],
    acts: Acts,
    keep: Callable[[Handle], None],
) -> None:
    promise = Future[Handle]()
    acts.plan(CANCELLED, {3: cancelling(promise)})
    with Engine(max_batch=4, channel=channel) as engine:
        ids = [engine.add(source).card.model_id for source in sources]
        held = doing(lambda: promise.result(WAIT_S))
        acts.plan(FAILING, {0: held, **acts.acts[FAILING]})
        handles = [engine.submit(request) for request in asked(*ids, latents)]
        promise.set_result(next(h for h in handles if h.spec.seed == CANCELLED))
        for handle in handles:
            handle.wait(WAIT_S)
            keep(handle)
        stacked = sum(
            handle.result().provenance.stacked_steps
            for handle in handles
            if handle.spec.seed not in (FAILING, CANCELLED)
        )
        assert stacked > 0, "nothing was stacked, so this run proved nothing"


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
