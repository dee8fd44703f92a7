"""The model under test: how it is served, what it is asked for, and what it gave when alone.

Invariant: every engine that a gate gets serves the same weights, with the perturbation that was
asked for; references and oracles read the files for themselves and never see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch

from ostinato.backend.importing import load_object
from ostinato.card import Determinism, ModelCard, ModelSource
from ostinato.errors import InvalidCard
from ostinato.loop.contract import Component
from ostinato.parity.aligner import CallRecord, ParityAligner
from ostinato.parity.folders import weight_folders
from ostinato.parity.perturb import Perturbation
from ostinato.parity.room import require_room
from ostinato.parity.tolerances import measure, trajectory_tolerance
from ostinato.request import Request
from ostinato.runtime import Batching, Engine, Output, ResidentModel, Stacking
from ostinato.runtime.scheduler import Policy
from ostinato.runtime.threads import cpu_turn, kernel_threads
from ostinato.tasks import OutputName

# Words that every family's tokenizer takes; the built-in world knows most of them.
PROMPTS = (
    "a red circle bouncing on a navy background",
    "blue ring falling, gray background",
    "a green square moving left on a white background",
)
_MIN_SIDE = 64  # pixels: enough rows of patches that stacking can be exact
_STEPS, _SCALES = (3, 5, 4, 2), (3.0, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How a model is verified.

    quick: fewer steps and smaller batches, never fewer gates. prompts: what it is asked for.
    perturbation: a weight of our side to move after load. goldens: the file of its goldens.
    """

    quick: bool = False
    prompts: tuple[str, ...] = PROMPTS
    perturbation: Perturbation | None = None
    goldens: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One served request: what it gave, and every call on the way."""

    output: Output
    calls: tuple[CallRecord, ...]
    num_taps: int


class Subject:
    """One model, verified once; what several gates need is made once and kept."""

    def __init__(self, source: ModelSource, options: VerifyOptions) -> None:
        """Take an opened model; nothing is loaded yet."""
        self.source = source
        self.options = options

    @property
    def card(self) -> ModelCard:
        """The card of the model."""
        return self.source.card

    @property
    def bitwise(self) -> bool:
        """Whether the card promises bytes, by which gates then compare; else a tolerance."""
        return self.card.parity.output_determinism is Determinism.BITWISE

    @property
    def threads(self) -> int:
        """Threads that the engine gives this model's kernels."""
        return kernel_threads(self.card)

    @contextmanager
    def serving(
        self,
        policy: Policy | None = None,
        *,
        max_batch: int = 1,
        batching: Batching = Batching.EXACT,
        observer: ParityAligner | None = None,
    ) -> Iterator[tuple[Engine, ResidentModel]]:
        """Serve the model, perturbed where that was asked for; closed with the context."""
        with Engine(
            policy,
            max_batch=max_batch,
            stacking=Stacking.ALWAYS,
            batching=batching,
            observer=observer,
        ) as engine:
            resident = engine.add(self.source)
            self._perturb(resident)
            yield engine, resident

    def resident(self) -> ResidentModel:
        """Load the model for calls outside an engine; perturbed where that was asked for."""
        resident = ResidentModel(self.source)
        self._perturb(resident)
        return resident

    @contextmanager
    def cpu(self) -> Iterator[None]:
        """Hold the CPU as the engine does while it runs this model's kernels."""
        with cpu_turn(self.threads):
            yield

    @property
    def weighted(self) -> tuple[str, ...]:
        """Names of the components that have ops, and so may have weights."""
        return tuple(spec.name for spec in self.card.components if spec.ops)

    @property
    def denoisers(self) -> tuple[str, ...]:
        """Names of the components that the card's loops drive."""
        bound = (loop.binds.get("denoiser") for loop in self.card.loops)
        return tuple(dict.fromkeys(name for name in bound if name is not None))

    def request(self, index: int = 0, **fields: object) -> Request:
        """Make a small request; different indices differ in prompt, seed, steps and guidance.

        Raises InvalidCard when there is no prompt to ask for.
        """
        prompts, caps = self.options.prompts, self.card.capabilities
        if not prompts:
            raise InvalidCard("the set of prompts is empty, so nothing can be asked for")
        pinned = self.card.recipe.assumes_schedule
        steps, scale = pinned.num_inference_steps, pinned.guidance_scale
        made: dict[str, object] = {
            "model": self.card.model_id,
            "task": self.card.defaults.task,
            "prompt": prompts[index % len(prompts)],
            "seed": index,
            "height": _least(caps.height.nearest, caps.height.accepts),
            "width": _least(caps.width.nearest, caps.width.accepts),
            "num_frames": self.card.parity.num_frames,
            "num_inference_steps": (steps or _STEPS)[index % len(steps or _STEPS)],
            "guidance_scale": _SCALES[index % len(_SCALES)] if scale is None else scale,
            "sampler": caps.samplers[index % (1 if pinned.sampler else len(caps.samplers))],
            "outputs": (OutputName.VIDEO, OutputName.LATENTS),
        }
        return Request.build(**{**made, **fields})

    @cached_property
    def recorded(self) -> Recorded:
        """The first request, served by an engine under an aligner."""
        return self.record(self.request())

    def record(self, request: Request) -> Recorded:
        """Serve a request and record every call of it."""
        aligner = ParityAligner()
        with self.serving(observer=aligner) as (engine, _):
            output = engine.run([request])[0]
        return Recorded(output=output, calls=aligner.calls, num_taps=aligner.num_taps)

    def alone(self, requests: Sequence[Request]) -> list[Output]:
        """Serve requests one after the other; what each gave is kept."""
        missing = [request for request in requests if request not in self._alone]
        if missing:
            with self.serving() as (engine, _):
                for request in missing:
                    self._alone[request] = engine.submit(request).result()
        return [self._alone[request] for request in requests]

    @cached_property
    def reference(self) -> ModelSource:
        """The same model in float64; raises InvalidCard for a card that names none."""
        named = self.card.parity.reference
        if named is None:
            raise InvalidCard(
                f"card {self.card.model_id!r} names no reference, so there is nothing to measure "
                "its components by"
            )
        derive = cast("Callable[[ModelSource], ModelSource]", load_object(named))
        return derive(self.source)

    @cached_property
    def reference_component(self) -> Callable[[str], Component]:
        """The components of the reference, loaded when first asked for.

        Raises ReferenceTooLarge where they do not fit into memory.
        """
        self.require_reference_room()
        return ResidentModel(self.reference).component

    def require_reference_room(self) -> None:
        """Raise ReferenceTooLarge where the weights in float64 do not fit into memory."""
        require_room(weight_folders(self.source))

    @cached_property
    def _alone(self) -> dict[Request, Output]:
        return {}

    def _perturb(self, resident: ResidentModel) -> None:
        moved = self.options.perturbation
        if moved is not None:
            moved.apply(resident.component(moved.component))


def same_output(one: Output, other: Output) -> bool:
    """Tell whether two outputs are equal to the byte, frames where both were asked for them."""
    if not torch.equal(one.latents, other.latents):
        return False
    if OutputName.VIDEO not in one.values or OutputName.VIDEO not in other.values:
        return True
    return np.array_equal(one.video.frames, other.video.frames)


def alike_output(one: Output, other: Output) -> bool:
    """Tell whether two outputs are within what whole runs of one request may differ by."""
    pairs = [(one.latents, other.latents)]
    if OutputName.VIDEO in one.values and OutputName.VIDEO in other.values:
        pairs.append((torch.from_numpy(one.video.frames), torch.from_numpy(other.video.frames)))
    return all(alike(mine, theirs) for mine, theirs in pairs)


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether a value of a whole run is within tolerance of another run's."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return trajectory_tolerance(one.dtype).allows(measure(one, other))


def _least(nearest: Callable[[int], tuple[int, ...]], accepts: Callable[[int], bool]) -> int:
    """Return the least accepted size that is enough, or the largest there is."""
    return _MIN_SIDE if accepts(_MIN_SIDE) else nearest(_MIN_SIDE)[-1]
