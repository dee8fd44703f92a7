"""Whole requests, ours and the library's: the same folder, seed, settings and outputs."""

from __future__ import annotations

import time
from typing import cast

import torch

from ostinato.card import ModelSource
from ostinato.models.wan.oracle import WanOracle
from ostinato.request import Request
from ostinato.runtime import Engine
from ostinato.runtime.resolve import resolve
from ostinato.runtime.threads import cpu_turn, kernel_threads
from ostinato.tasks import RequestId


class EngineRun:
    """Serves one request again and again; `latents` collects what came of it.

    cpu_threads: those of the latest one's kernels.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        """Take an engine that knows the request's model."""
        self.latents: list[torch.Tensor] = []
        self.cpu_threads = 0
        self._engine, self._request = engine, request

    def __call__(self) -> float:
        """Return the seconds from the request to its output."""
        started = time.perf_counter()
        output = self._engine.submit(self._request).result()
        spent = time.perf_counter() - started
        self.latents.append(output.latents)
        self.cpu_threads = output.provenance.cpu_threads
        return spent


class DiffusersRun:
    """Makes the same request with WanPipeline; `latents` collects what came of it."""

    def __init__(self, source: ModelSource, request: Request) -> None:
        """Load the folder with the library; weights aligned as ours are."""
        self.latents: list[torch.Tensor] = []
        self._threads = kernel_threads(source.card)
        self._spec = resolve(source.card, request, RequestId("diffusers"))
        self._oracle = WanOracle(source)
        self._oracle.use_flow_shift(self._spec.flow_shift)

    def __call__(self) -> float:
        """Return the seconds from the call of the pipeline to its output."""
        with cpu_turn(self._threads):
            started = time.perf_counter()
            latents = self._oracle.generate(self._spec, output_type="latent")
            spent = time.perf_counter() - started
        self.latents.append(cast("torch.Tensor", latents))
        return spent
