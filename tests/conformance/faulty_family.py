"""Broken parts of the built-in family, each named on a card by import string."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import torch

from conformance.values import modules_of
from ostinato.backend.batch_rules import StackRules
from ostinato.backend.checkpoint import read_headers
from ostinato.backend.operations import Inputs
from ostinato.card import ComponentSpec, ModelCard, ModelSource, PrecisionSpec
from ostinato.loop.chunks.rollout import ChunkRollout, RolloutState
from ostinato.loop.contract import Done
from ostinato.loop.facts import LatentFacts
from ostinato.models.builtin.components import (
    BuiltinCodec,
    BuiltinTextEncoder,
    BuiltinTransformer,
)
from ostinato.models.registry import open_model
from ostinato.request import GenerationSpec
from ostinato.work import WorkPlan

Op = Callable[..., Mapping[str, object]]


def with_adapter(card: ModelCard, component: str, adapter: type) -> ModelCard:
    """Put a broken adapter in the place of a component's own."""
    name = f"{__name__}:{adapter.__name__}"
    specs = [
        dataclasses.replace(spec, adapter=name) if spec.name == component else spec
        for spec in card.components
    ]
    return dataclasses.replace(card, components=tuple(specs))


def with_loop(card: ModelCard, loop: type) -> ModelCard:
    """Put a broken loop in the place of the card's own."""
    (spec,) = card.loops
    broken = dataclasses.replace(spec, loop=f"{__name__}:{loop.__name__}")
    return dataclasses.replace(card, loops=(broken,))


class FactsFromWeights(BuiltinCodec):
    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> LatentFacts:
        read_headers(folder / spec.subfolder)
        return super().read_facts(folder, spec)


class AnyAttributeIsAnOp(BuiltinCodec):
    def op(self, name: str) -> Op:
        return getattr(self, name, self.decode)


class DecodesAnew(BuiltinCodec):
    """Gives other bytes each time."""

    count = 0

    def decode(self, latents: torch.Tensor) -> Mapping[str, object]:
        self.count += 1
        frames = super().decode(latents)["frames"]
        return {"frames": frames + self.count}  # type: ignore[operator]


class Unguided(BuiltinTransformer):
    """Runs a second branch for nothing when one is asked for."""

    def predict(self, *args: object, **inputs: object) -> Mapping[str, object]:
        outputs = super().predict(*args, **inputs)  # type: ignore[arg-type]
        if len(outputs["prediction"]) == 1:  # type: ignore[arg-type]
            super().predict(*args, **inputs)  # type: ignore[arg-type]
        return outputs


class HidesNaN(BuiltinTextEncoder):
    def encode(self, text: str) -> Mapping[str, object]:
        outputs = super().encode(text)
        return {**outputs, "prompt_embeds": torch.nan_to_num(outputs["prompt_embeds"])}  # type: ignore[arg-type]


class Deaf(BuiltinTextEncoder):
    """Hears the same prompt always."""

    def encode(self, text: str) -> Mapping[str, object]:
        return super().encode("a red circle")


class Stateful(BuiltinTransformer):
    """Keeps the latest text on the module, as a step cache that is refreshed by count does."""

    latest: object = None
    count = 0

    def predict(self, *args: object, **inputs: object) -> Mapping[str, object]:
        self.count += 1
        if self.count % 2 or self.latest is None:
            self.latest = super().predict(*args, **inputs)["prediction"]  # type: ignore[arg-type]
            return {"prediction": self.latest}
        fresh = super().predict(*args, **inputs)["prediction"]  # type: ignore[arg-type]
        return {"prediction": fresh + self.latest.mean()}  # type: ignore[attr-defined,operator]


class AnotherForwardWithGrad(BuiltinTransformer):
    def predict(self, *args: object, **inputs: object) -> Mapping[str, object]:
        outputs = super().predict(*args, **inputs)  # type: ignore[arg-type]
        return {"prediction": outputs["prediction"] + float(torch.is_grad_enabled())}  # type: ignore[operator]


class TakesAProbe(BuiltinTransformer):
    def predict(self, probe: object = None, **inputs: object) -> Mapping[str, object]:  # type: ignore[override]
        return super().predict(**inputs)  # type: ignore[arg-type]


class Askew(BuiltinTransformer):
    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        loaded = super().load(folder, spec, precision)
        for module in modules_of(loaded):
            for parameter in module.parameters():
                storage = torch.empty(parameter.numel() + 1)
                parameter.data = storage[1:].view(parameter.shape).copy_(parameter.data)
        assert isinstance(loaded, cls)
        return loaded


class RoundsInStacks(BuiltinTransformer):
    """Gives a stack another last bit than its calls have alone."""

    def op_stacked(
        self, name: str, rules: StackRules
    ) -> Callable[[Sequence[Inputs]], Sequence[Mapping[str, object]] | None]:
        stack = super().op_stacked(name, rules)

        def run(items: Sequence[Inputs]) -> Sequence[Mapping[str, object]] | None:
            found = stack(items)
            if found is None or name != "predict":
                return found
            return [{"prediction": each["prediction"] * (1 + 2e-7)} for each in found]  # type: ignore[operator]

        return run


class Reseeds(BuiltinCodec):
    def decode(self, latents: torch.Tensor) -> Mapping[str, object]:
        torch.manual_seed(0)
        return super().decode(latents)


class CountsAStepTooMany(ChunkRollout):
    def num_steps(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        return super().num_steps(spec, facts) + 1


class ReadsTheClip(ChunkRollout):
    def reads(self, spec: GenerationSpec) -> frozenset[str]:
        return super().reads(spec) | {"frames"}


class PlanHoldsAFunction(ChunkRollout):
    def next(self, state: RolloutState) -> WorkPlan | Done:
        plan = super().next(state)
        if isinstance(plan, Done) or plan.calls[0].op != "predict":
            return plan
        call = plan.calls[0]
        inputs = {**call.inputs, "probe": lambda: None}
        return dataclasses.replace(plan, calls=(dataclasses.replace(call, inputs=inputs),))


class WrongOracle:
    """Draws other noise than the served model does."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source

    def run(self, spec: GenerationSpec) -> object:
        from ostinato.api import Model

        with Model(open_model(self.source.folder)) as model:
            request = model.request(
                spec.prompt,
                seed=spec.seed + 1,
                num_frames=spec.num_frames,
                num_inference_steps=spec.num_inference_steps,
                outputs=("video", "latents"),
            )
            return model.engine.submit(request).result()
