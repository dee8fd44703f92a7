"""Every test of the loop suite fails on a loop that breaks what it is about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
import torch

from conformance.biting import bites, suite_tests
from conformance.loop import LoopSuite
from ostinato.card import LoopSpec
from ostinato.loop.chunks.rollout import ChunkRollout, RolloutState
from ostinato.loop.contract import Component, Done, Emission, LoopContext, LoopResult, Slots
from ostinato.loop.denoise import Denoise, DenoiseState
from ostinato.loop.policies.guidance import Branch
from ostinato.request import GenerationSpec
from ostinato.work import CacheRef, WorkPlan, WorkResult
from support.tiny_denoisers import FACTS, TinyCausal, TinyDenoiser, embeds, spec_of

BINDS = {"denoiser": "net", "latents": "codec"}


class Subject(LoopSuite):
    loop_spec = LoopSpec(name="denoise", loop="x:Denoise", binds=BINDS)
    factory = Denoise
    reads = frozenset({"prompt_embeds", "negative_prompt_embeds"})
    writes = frozenset({"latents"})
    facts = FACTS

    def component(self) -> Component:
        return TinyDenoiser()

    def slots(self) -> Mapping[str, object]:
        return embeds()

    def specs(self) -> tuple[GenerationSpec, ...]:
        return spec_of(), spec_of(seed=2, guidance_scale=1.0, num_inference_steps=2)

    def refused(self) -> tuple[GenerationSpec, ...]:
        return (spec_of(sampler="dpm"),)


class Rollout(Subject):
    loop_spec = LoopSpec(
        name="r",
        loop="x:ChunkRollout",
        binds=BINDS,
        options={
            "frames_per_block": 2,
            "window_blocks": 2,
            "attention_context": "self_forcing",
            "guidance": "batched",
            "guidance_rule": "classifier_free",
        },
    )

    def component(self) -> Component:
        return TinyCausal()


def with_latents(state: DenoiseState, latents: torch.Tensor) -> DenoiseState:
    return dataclasses.replace(
        state, trajectory=dataclasses.replace(state.trajectory, latents=latents)
    )


def with_inputs(plan: WorkPlan | Done, **inputs: object) -> WorkPlan | Done:
    if isinstance(plan, Done):
        return plan
    calls = [dataclasses.replace(c, inputs={**c.inputs, **inputs}) for c in plan.calls]
    return dataclasses.replace(plan, calls=tuple(calls))


class NextRunsAKernel(Denoise):
    def next(self, state: DenoiseState) -> WorkPlan | Done:
        return with_inputs(super().next(state), latents=state.trajectory.latents * 1.0)


class NextCounts(Denoise):
    asked = 0

    def next(self, state: DenoiseState) -> WorkPlan | Done:
        self.asked += 1
        return with_inputs(super().next(state), guidance=torch.tensor([float(self.asked)]))


class AdvanceCounts(Denoise):
    asked = 0

    def advance(self, state: DenoiseState, result: WorkResult) -> DenoiseState:
        self.asked += 1
        after = super().advance(state, result)
        return with_latents(after, after.trajectory.latents + self.asked)


class AdvanceWritesTheOldState(Denoise):
    def advance(self, state: DenoiseState, result: WorkResult) -> DenoiseState:
        after = super().advance(state, result)
        state.trajectory.latents.add_(1)
        return after


class StateIsLoose(Denoise):
    def init(self, spec: GenerationSpec, slots: Slots, context: LoopContext) -> DenoiseState:
        state = super().init(spec, slots, context)
        fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
        return SimpleNamespace(**fields)  # type: ignore[return-value]


class CountsAStepTooMany(Denoise):
    def num_steps(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        return super().num_steps(spec, facts) + 1


class EmitsFromOne(ChunkRollout):
    def emitted(self, state: RolloutState) -> tuple[Emission, ...]:
        return tuple(dataclasses.replace(e, index=e.index + 1) for e in super().emitted(state))


class FinalizeWrites(Denoise):
    def finalize(self, state: DenoiseState) -> LoopResult:
        state.trajectory.latents.zero_()
        return super().finalize(state)


class WritesAnotherSlot(Denoise):
    def finalize(self, state: DenoiseState) -> LoopResult:
        return LoopResult(slots={"latent": state.trajectory.latents})


class ReadsWhatItDoesNotUse(Denoise):
    def reads(self, spec: GenerationSpec) -> frozenset[str]:
        return frozenset({"prompt_embeds", "negative_prompt_embeds"})


class ChecksNothing(Denoise):
    def check(self, spec: GenerationSpec, facts: Mapping[str, object]) -> tuple[str, ...]:
        return ()


class TakesAnyCard(Denoise):
    def __init__(self, spec: LoopSpec) -> None:
        super().__init__(dataclasses.replace(spec, binds=BINDS, options={}))


class SharesADict(Denoise):
    def __init__(self, spec: LoopSpec) -> None:
        super().__init__(spec)
        self.shared: dict[Branch, Mapping[str, object]] = {}

    def init(self, spec: GenerationSpec, slots: Slots, context: LoopContext) -> DenoiseState:
        state = super().init(spec, slots, context)
        self.shared.update(state.conditioning)
        return dataclasses.replace(state, conditioning=self.shared)


class ReadsAheadOfCommit(ChunkRollout):
    def next(self, state: RolloutState) -> WorkPlan | Done:
        plan = super().next(state)
        if state.text_kv is None:
            return plan
        return with_inputs(plan, context=CacheRef(pages=(state.ring.page(state.block),)))


class DrawsFromTheProcess(Denoise):
    def init(self, spec: GenerationSpec, slots: Slots, context: LoopContext) -> DenoiseState:
        state = super().init(spec, slots, context)
        return with_latents(state, torch.randn_like(state.trajectory.latents))


class KeepsTheLatest(Denoise):
    latest: torch.Tensor | None = None

    def advance(self, state: DenoiseState, result: WorkResult) -> DenoiseState:
        after = super().advance(state, result)
        kept, self.latest = self.latest, after.trajectory.latents
        mixed = after.trajectory.latents if kept is None else after.trajectory.latents + kept
        return with_latents(after, mixed) if after.trajectory.step > 1 else after


class Opaque:
    """Something that a plan cannot carry to another process."""

    def __rmul__(self, other: float) -> float:
        return 0.0


class PlanHoldsAnObject(Denoise):
    def next(self, state: DenoiseState) -> WorkPlan | Done:
        return with_inputs(super().next(state), guidance=Opaque())


class StepIsAScalar(Denoise):
    def next(self, state: DenoiseState) -> WorkPlan | Done:
        return with_inputs(super().next(state), guidance=float(state.trajectory.step))


class AnotherForwardWithGrad(TinyDenoiser):
    def predict(self, *args: object, **inputs: object) -> Mapping[str, object]:
        outputs = super().predict(*args, **inputs)  # type: ignore[arg-type]
        prediction = outputs["prediction"]
        assert isinstance(prediction, torch.Tensor)
        return {"prediction": prediction + float(torch.is_grad_enabled())}


class WithGrad(Subject):
    def component(self) -> Component:
        return AnotherForwardWithGrad()


FAULTS: dict[str, tuple[type[Subject], Callable[[LoopSpec], object]]] = {
    "test_next_runs_no_kernel": (Subject, NextRunsAKernel),
    "test_next_is_pure": (Subject, NextCounts),
    "test_advance_is_pure": (Subject, AdvanceCounts),
    "test_the_old_state_is_left_as_it_was": (Subject, AdvanceWritesTheOldState),
    "test_a_state_is_frozen": (Subject, StateIsLoose),
    "test_steps_counted_are_plans_made": (Subject, CountsAStepTooMany),
    "test_pieces_counted_are_emissions_made": (Rollout, EmitsFromOne),
    "test_done_is_stable": (Subject, FinalizeWrites),
    "test_finalize_writes_the_declared_slots": (Subject, WritesAnotherSlot),
    "test_reads_are_declared_and_are_what_is_read": (Subject, ReadsWhatItDoesNotUse),
    "test_check_refuses_what_it_cannot_serve": (Subject, ChecksNothing),
    "test_a_spec_that_is_not_served_is_an_invalid_card": (Subject, TakesAnyCard),
    "test_two_requests_share_nothing_that_changes": (Subject, SharesADict),
    "test_pages_are_committed_once_and_read_after": (Rollout, ReadsAheadOfCommit),
    "test_noise_depends_on_the_seed_alone": (Subject, DrawsFromTheProcess),
    "test_interleaved_is_alone": (Subject, KeepsTheLatest),
    "test_a_plan_is_data": (Subject, PlanHoldsAnObject),
    "test_what_changes_from_step_to_step_is_a_tensor": (Subject, StepIsAScalar),
    "test_a_plan_with_grad_gives_the_same_bytes": (WithGrad, Denoise),
}


def test_every_test_of_the_suite_has_a_fault() -> None:
    assert set(FAULTS) == suite_tests(LoopSuite)


@pytest.mark.parametrize("name", FAULTS)
def test_it_bites(name: str) -> None:
    suite, factory = FAULTS[name]
    broken = type("Broken", (suite,), {"factory": factory})
    bites(getattr(broken(), name))


@pytest.mark.parametrize("name", sorted(suite_tests(LoopSuite)))
@pytest.mark.parametrize(("suite", "factory"), [(Subject, Denoise), (Rollout, ChunkRollout)])
def test_the_subjects_pass_when_nothing_is_broken(
    suite: type[Subject], factory: Callable[[LoopSpec], object], name: str
) -> None:
    getattr(type("Whole", (suite,), {"factory": factory})(), name)()
