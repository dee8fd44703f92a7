"""Whole runs against float64, and against what the request alone says."""

from __future__ import annotations

import dataclasses

import pytest

from ostinato.card import ModelSource
from ostinato.errors import InvalidCard
from ostinato.loop.chunks import rollout as rollout_module
from ostinato.loop.chunks.rollout import ChunkRollout, RolloutState
from ostinato.loop.denoise import Denoise
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling.steppers import FlowEuler
from ostinato.loop.trajectory import Trajectory
from ostinato.parity.compare import Comparison, first_divergence
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.batch import batch
from ostinato.parity.gates.company import determinism, interleave
from ostinato.parity.gates.components import components
from ostinato.parity.gates.course import course
from ostinato.parity.gates.reentry import reentry
from ostinato.parity.gates.sampling import bound_sampler
from ostinato.parity.gates.trajectory import trajectory
from ostinato.parity.subject import Subject, VerifyOptions
from support.subjects import QUICK, moved, with_parity


def test_the_trajectory_passes_and_bites(builtin: Subject, builtin_source: ModelSource) -> None:
    result = trajectory(builtin)
    assert result.passed, result.message
    assert result.measured > 60
    assert 0 < result.worst_relative_error < 2e-5
    result = trajectory(moved(builtin_source, "transformer.blocks.0.attn1.to_v.weight=0.1"))
    assert not result.passed
    assert "transformer.predict" in result.message


def restarted(state: RolloutState, noise: NoiseStream) -> RolloutState:
    """Begin every block from the noise of the first."""
    shape = tuple(state.trajectory.latents.shape)
    first = dataclasses.replace(state.trajectory, latents=noise.normal(shape, "initial", 0))
    return dataclasses.replace(state, trajectory=first)


def test_a_fault_of_the_loop_is_red_though_both_runs_share_it(
    builtin_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float64 run is driven by the same loop; what the request says is not."""
    next_block, step = ChunkRollout._next_block, FlowEuler.step
    faults: tuple[tuple[object, str, object, str], ...] = (
        (
            ChunkRollout,
            "_next_block",
            lambda self, state: dataclasses.replace(
                next_block(self, state), first_frame=state.first_frame + 1
            ),
            "'fed first_frame'",
        ),
        (
            ChunkRollout,
            "_next_block",
            lambda self, state: restarted(next_block(self, state), state.noise),
            "'fed initial noise'",
        ),
        (
            rollout_module,
            "visible_blocks",
            lambda context, block, *, window_blocks: tuple(range(max(0, block - 1), block)),
            "'out.fed context[0].keys_rotated'",
        ),
        (
            Trajectory,
            "timestep",
            property(lambda self: self.schedule.timesteps[0]),
            "'fed timestep'",
        ),
        (
            FlowEuler,
            "step",
            lambda self, x, v, sigma, sigma_next, memory: step(self, x, v, 1.0, 0.9, memory),
            "'fed next latents'",
        ),
    )
    for where, name, fault, tap in faults:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fault)
            # Three blocks: the last has two behind it.
            result = trajectory(Subject(with_parity(builtin_source, num_frames=30), QUICK))
        assert not result.passed, name
        assert f"first divergence: tap {tap}" in result.message


def test_a_run_of_other_steps_than_asked_for_is_red(builtin: Subject) -> None:
    run = builtin.recorded
    fewer = dataclasses.replace(run, calls=run.calls[: len(run.calls) // 2])
    with pytest.raises(NothingMeasured, match="denoise steps, expected 3 of each of 2 blocks"):
        list(course(fewer, builtin.card.loops[0], None))


def test_a_missing_reference_and_an_empty_prompt_set_are_red(builtin_source: ModelSource) -> None:
    source = with_parity(builtin_source, reference=None)
    for gate in (components, trajectory):
        with pytest.raises(InvalidCard, match="names no reference"):
            gate(Subject(source, VerifyOptions(quick=True)))
    empty = Subject(builtin_source, VerifyOptions(prompts=()))
    for gate in (components, trajectory, reentry, determinism, interleave, batch):
        with pytest.raises(InvalidCard, match="set of prompts is empty"):
            gate(empty)


def drifted(trajectory: Trajectory) -> Trajectory:
    return dataclasses.replace(trajectory, latents=trajectory.latents * 1.001)


def fed(subject: Subject) -> Comparison | None:
    """Return what a run whose sampler is a component was first fed wrongly."""
    loop = subject.card.loops[0]
    comparisons = list(course(subject.recorded, loop, bound_sampler(subject.reference, loop)))
    names = {comparison.tap for comparison in comparisons}
    assert names == {"fed initial noise", "fed timestep", "fed next latents"}
    return first_divergence(comparisons)


def test_a_run_whose_sampler_is_a_component_is_followed_too(
    wan: Subject, wan_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fed(wan) is None
    begin, advance = Denoise._initial_latents, Trajectory.advance
    faults: tuple[tuple[object, str, object, str], ...] = (
        (
            Denoise,
            "_initial_latents",
            lambda self, spec, context: begin(self, spec, context).roll(1, dims=2),
            "fed initial noise",
        ),
        (
            Trajectory,
            "timestep",
            property(lambda self: self.schedule.timesteps[0]),
            "fed timestep",
        ),
        (
            Trajectory,
            "advance",
            lambda self, *given: drifted(advance(self, *given)),
            "fed next latents",
        ),
    )
    for where, name, fault, tap in faults:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fault)
            first = fed(Subject(wan_source, QUICK))
        assert first is not None, name
        assert first.tap == tap


def test_a_sampler_whose_steps_nobody_knows_is_red(builtin: Subject) -> None:
    run, loop = builtin.recorded, builtin.card.loops[0]
    provenance = run.output.provenance
    spec = dataclasses.replace(provenance.spec, sampler="dpm")
    output = dataclasses.replace(run.output, provenance=dataclasses.replace(provenance, spec=spec))
    with pytest.raises(NothingMeasured, match="sampler 'dpm' has no float64 steps"):
        list(course(dataclasses.replace(run, output=output), loop, None))


@pytest.mark.slow
def test_the_trajectory_of_a_model_with_a_sampler_of_its_own(wan_source: ModelSource) -> None:
    """Wan is held to an oracle; without one it is followed step by step."""
    result = trajectory(Subject(with_parity(wan_source, oracle=None), QUICK))
    assert result.passed, result.message
    assert "fed next latents" in {comparison.tap for comparison in result.comparisons}
