"""The stock denoise loop: one trajectory from noise to latents, whole clip or image at once.

Roles: `denoiser` (op `predict`), `latents` (facts only), `sampler` (facts only; optional, one of
the pure samplers otherwise). Reads `prompt_embeds` and, when a second branch runs,
`negative_prompt_embeds`; writes `latents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import torch

from ostinato.card import AttentionContext, GuidanceForm, LoopSpec, Scalar
from ostinato.loop.contract import (
    DONE,
    Done,
    Emission,
    LoopContext,
    LoopResult,
    Slots,
)
from ostinato.loop.facts import DenoiserFacts, Footprint, LatentFacts, fact
from ostinato.loop.options import bound, member, options
from ostinato.loop.policies.guidance import (
    Branch,
    branch_calls,
    branch_predictions,
    branches,
    guidance_rule,
)
from ostinato.loop.sampling import LibrarySampler, Sampler, sampler_by_name, unknown_sampler
from ostinato.loop.trajectory import Trajectory
from ostinato.request import ArrayLike, GenerationSpec
from ostinato.work import WorkPlan, WorkResult, WorkUnitKind

EMBEDS_OF = (
    (Branch.COND, "prompt_embeds"),
    (Branch.UNCOND, "negative_prompt_embeds"),
)


class NoiseSource(StrEnum):
    """Where initial noise comes from.

    keyed: the request's stream. oracle: the library's draw, one generator seeded by the bare
    seed, one call for the whole tensor.
    """

    KEYED = "keyed"
    ORACLE = "oracle"


DEFAULT_OPTIONS: Mapping[str, Scalar] = MappingProxyType(
    {
        "guidance": GuidanceForm.TWO_FORWARD.value,
        "guidance_rule": "classifier_free",
        "noise": NoiseSource.KEYED.value,
        "attention_context": AttentionContext.BIDIRECTIONAL.value,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiseState:
    """Between two steps. guidance: the scale as a tensor [1] where the network takes it."""

    spec: GenerationSpec
    conditioning: Mapping[Branch, Mapping[str, object]]
    guidance: torch.Tensor | None
    trajectory: Trajectory


class Denoise:
    """Drive a sampler over a denoiser.

    Options: `guidance` (a GuidanceForm), `guidance_rule`, `noise` (a NoiseSource),
    `attention_context` (`bidirectional`: a whole clip has no other).
    """

    def __init__(self, spec: LoopSpec) -> None:
        """Read the options; raises InvalidCard for one that is unknown or not served."""
        given = options(spec, required=frozenset(), defaults=DEFAULT_OPTIONS)
        roles = frozenset({"denoiser", "latents"})
        binds = bound(spec, required=roles, optional=frozenset({"sampler"}))
        served = (AttentionContext.BIDIRECTIONAL,)
        member(spec, "attention_context", given["attention_context"], served)
        self._component = binds["denoiser"]
        self._form = member(spec, "guidance", given["guidance"], tuple(GuidanceForm))
        self._rule = guidance_rule(str(given["guidance_rule"]))
        self._noise = member(spec, "noise", given["noise"], tuple(NoiseSource))

    def reads(self, spec: GenerationSpec) -> frozenset[str]:
        """Return the embeddings of the branches that will run."""
        order = branches(self._form, spec.guidance_scale)
        return frozenset(slot for branch, slot in EMBEDS_OF if branch in order)

    def num_steps(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        """Return one plan for each denoise step."""
        del facts
        return spec.num_inference_steps

    def num_pieces(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        """Nothing is ready before the last step."""
        del spec, facts
        return 0

    def footprint(self, spec: GenerationSpec, facts: Mapping[str, object]) -> Footprint:
        """Return no pages, and the clip's tokens in each branch that shares a call."""
        _, _, *latent_size = _latents_shape(spec, facts)
        tokens = fact(facts, "denoiser", DenoiserFacts).num_tokens(*latent_size)
        shared = self._form is GuidanceForm.BATCHED
        samples = len(branches(self._form, spec.guidance_scale)) if shared else 1
        return Footprint(num_pages=0, page_tokens=0, call_tokens=samples * tokens)

    def init(self, spec: GenerationSpec, slots: Slots, context: LoopContext) -> DenoiseState:
        """Draw the noise, fix the schedule."""
        sampler: Sampler[object]
        if "sampler" in context.facts:
            sampler = _sampler(context.facts)  # type: ignore[assignment]
        else:
            sampler = sampler_by_name(spec.sampler)
        schedule = sampler.schedule(spec.num_inference_steps, spec.flow_shift)
        latents = self._initial_latents(spec, context)
        order = branches(self._form, spec.guidance_scale)
        scale = torch.tensor([spec.guidance_scale], dtype=torch.float32)
        return DenoiseState(
            spec=spec,
            conditioning={b: {"prompt_embeds": slots[s]} for b, s in EMBEDS_OF if b in order},
            guidance=scale if self._form is GuidanceForm.EMBEDDED else None,
            trajectory=Trajectory.begin(sampler, schedule, latents, context.noise),
        )

    def next(self, state: DenoiseState) -> WorkPlan | Done:
        """Describe the calls of one denoise step."""
        trajectory = state.trajectory
        if trajectory.done:
            return DONE
        shared = {"latents": trajectory.latents, "timestep": trajectory.timestep}
        calls = branch_calls(
            self._form, self._component, "predict", shared, state.conditioning, state.guidance
        )
        return WorkPlan(kind=WorkUnitKind.DIFFUSION_STEP, calls=calls)

    def advance(self, state: DenoiseState, result: WorkResult) -> DenoiseState:
        """Combine the branches and step the sampler."""
        scale = state.spec.guidance_scale
        order = branches(self._form, scale)
        predictions = branch_predictions(self._form, order, result, "prediction")
        return replace(state, trajectory=state.trajectory.advance(self._rule, predictions, scale))

    def finalize(self, state: DenoiseState) -> LoopResult:
        """Leave the final latents."""
        return LoopResult(slots={"latents": state.trajectory.latents})

    def emitted(self, state: DenoiseState) -> tuple[Emission, ...]:
        """Nothing is finished before the last step."""
        del state
        return ()

    def check(self, spec: GenerationSpec, facts: Mapping[str, object]) -> tuple[str, ...]:
        """Hold given latents against the size, and the sampler against what it takes."""
        problems: list[str] = []
        if "sampler" not in facts:
            problems += unknown_sampler(spec.sampler)
        elif spec.flow_shift is not None and not _sampler(facts).takes_flow_shift:
            problems.append("this model's sampler takes no flow_shift; leave it out")
        if spec.initial_latents is not None:
            problems += _latents_faults(spec.initial_latents, _latents_shape(spec, facts))
        return tuple(problems)

    def _initial_latents(self, spec: GenerationSpec, context: LoopContext) -> torch.Tensor:
        if spec.initial_latents is not None:
            # A copy: the caller may go on to change theirs.
            return torch.as_tensor(spec.initial_latents).to(torch.float32, copy=True)
        shape = _latents_shape(spec, context.facts)
        if self._noise is NoiseSource.ORACLE:
            generator = context.noise.oracle_generator()
            return torch.randn(shape, generator=generator, dtype=torch.float32)
        return context.noise.normal(shape, "initial", 0)


def _sampler(facts: Mapping[str, object]) -> LibrarySampler:
    return fact(facts, "sampler", LibrarySampler)


def _latents_faults(latents: ArrayLike, expected: tuple[int, ...]) -> Iterator[str]:
    if not isinstance(latents, torch.Tensor | np.ndarray):
        yield f"initial latents are a {type(latents).__name__}; expected a tensor or an array"
        return
    given = torch.as_tensor(latents)
    if tuple(given.shape) != expected:
        yield f"initial latents are {list(given.shape)}; this size needs {list(expected)}"
    if not given.is_floating_point() or not bool(torch.isfinite(given).all()):
        yield f"initial latents are {given.dtype}; expected finite floating-point numbers"


def _latents_shape(spec: GenerationSpec, facts: Mapping[str, object]) -> tuple[int, ...]:
    denoiser = fact(facts, "denoiser", DenoiserFacts)
    codec = fact(facts, "latents", LatentFacts)
    return (
        1,
        denoiser.in_channels,
        codec.num_latent_frames(spec.num_frames),
        spec.height // codec.spatial_stride,
        spec.width // codec.spatial_stride,
    )
