"""Whole requests, ours and the library's: the same folder, seed, settings and outputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import torch
from diffusers.pipelines.wan.pipeline_output import WanPipelineOutput

from ostinato.bench._threads import kernel_threads
from ostinato.card import ModelSource
from ostinato.models.wan.oracle import WanOracle
from ostinato.request import Request
from ostinato.runtime import Engine
from ostinato.runtime.threads import cpu_turn


class EngineRun:
    """Serves one request again and again; `latents` collects what came of it."""

    def __init__(self, engine: Engine, request: Request) -> None:
        """Take an engine that knows the request's model."""
        self.latents: list[torch.Tensor] = []
        self._engine, self._request = engine, request

    def __call__(self) -> float:
        """Return the seconds from the request to its output."""
        started = time.perf_counter()
        output = self._engine.submit(self._request).result()
        spent = time.perf_counter() - started
        self.latents.append(output.latents)
        return spent


class DiffusersRun:
    """Makes the same request with WanPipeline; `latents` collects what came of it."""

    def __init__(self, source: ModelSource, request: Request) -> None:
        """Load the folder with the library; weights aligned as ours are."""
        self.latents: list[torch.Tensor] = []
        self._threads = kernel_threads(source.card)
        self._pipeline = WanOracle(source).pipeline
        self._request = request

    def __call__(self) -> float:
        """Return the seconds from the call of the pipeline to its output."""
        # The library annotates the pipeline's call with older types than it takes.
        generate = cast("Callable[..., WanPipelineOutput]", self._pipeline)
        asked = self._request
        with cpu_turn(self._threads):
            started = time.perf_counter()
            output = generate(
                prompt=asked.prompt,
                height=asked.height,
                width=asked.width,
                num_frames=asked.num_frames,
                num_inference_steps=asked.num_inference_steps,
                guidance_scale=asked.guidance_scale,
                generator=torch.Generator("cpu").manual_seed(asked.seed),
                output_type="latent",
            )
            spent = time.perf_counter() - started
        self.latents.append(cast("torch.Tensor", output.frames))
        return spent
