"""Small models of two families, the requests of schedules to them, and what each makes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from ostinato.api import Engine
from ostinato.loop.contract import Component
from ostinato.models.registry import open_model
from ostinato.request import LatentPart, Request
from ostinato.runtime import Output, ResidentModel
from ostinato.runtime.needs import need_of, weights_of
from ostinato.runtime.resolve import resolve
from ostinato.runtime.selection import Selection
from ostinato.tasks import RequestId
from support.faults import WAIT_S
from support.schedules import Asked, Fate
from support.stacks import Stacks

HUGE = 3e38  # finite in float32; a sum of two is not


class World:
    """Serves requests one by one, and knows what happened to those that were served together."""

    def __init__(self, folders: Mapping[str, Path], stacks: Stacks) -> None:
        self.stacks = stacks
        self.sources = {name: open_model(folder) for name, folder in folders.items()}
        self.loaded: dict[str, Mapping[str, Component]] = {}
        self.alone = cache(self._alone)
        self.tally = Counter[str]()
        self._sole = Engine(max_batch=1)
        self._residents = self.serve(self._sole)

    def serve(self, engine: Engine) -> dict[str, ResidentModel]:
        """Add both models; loading their components once is enough."""
        residents = {name: engine.add(source) for name, source in self.sources.items()}
        for name, resident in residents.items():
            resident._components.update(self.loaded.get(name, {}))
        return residents

    def request(self, asked: Asked) -> Request:
        """Return the request, with the latents that overflow where those are its fate."""
        request = Request(
            model=self.sources[asked.family].card.model_id,
            task="text_to_video",
            prompt="a red circle",
            negative_prompt="blurry" if asked.seed else None,
            seed=asked.seed,
            height=asked.side,
            width=asked.side,
            num_frames=asked.num_frames,
            num_inference_steps=asked.steps,
            guidance_scale=asked.guidance,
            outputs=("video", "latents"),
            tenant=asked.tenant,
            priority=asked.priority,
            deadline_s=1e-6 if asked.fate is Fate.LATE else 3600.0 if asked.timely else None,
        )
        if asked.fate is not Fate.OVERFLOWS:
            return request
        shape = self.right(asked).latents.shape
        return replace(request, inputs=(LatentPart(latents=torch.full(shape, HUGE)),))

    def right(self, asked: Asked) -> Output:
        """Return what a request makes that has the engine to itself."""
        plain = Asked(
            asked.family, asked.side, asked.num_frames, asked.steps, asked.guidance, asked.seed
        )
        return self.alone(plain)

    def memory(self, asked: Sequence[Asked], room: float) -> float:
        """Return the bytes that have room for so many of the largest request, and all weights."""
        needs, weights = [0.0], dict[str, float]()
        for each in asked:
            model = self._residents[each.family]
            spec = resolve(model.card, self.request(each), RequestId("r0"))
            selection = Selection(model, model.program(spec.task), spec)
            needs.append(need_of(selection, spec, 0.0).memory_bytes)
            weights.update(weights_of(model, selection))
        return room * max(needs) + sum(weights.values())

    def close(self) -> None:
        """Stop the engine that serves requests one by one."""
        self._sole.close()

    def _alone(self, asked: Asked) -> Output:
        output = self._sole.submit(self.request(asked)).result(WAIT_S)
        self.loaded = {name: dict(r._components) for name, r in self._residents.items()}
        return output
