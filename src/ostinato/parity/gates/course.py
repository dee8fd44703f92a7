"""What a run must have fed its denoiser, told from the request and the card alone.

The float64 run is driven by the same loop, so a fault of the loop is on both sides of that
comparison. Here the noise and position of each block, its history, the time of each step and where
the step led are computed without the loop.
"""
# B branch, C channel, F latent frame of a block, T latent frame, H W latent

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch

from ostinato.backend.nets.kv import ContextKV, LayerKV
from ostinato.backend.reference.component import to_array
from ostinato.backend.reference.sampling import classifier_free_guidance
from ostinato.card import LoopSpec
from ostinato.loop.contract import as_tensor
from ostinato.loop.denoise import NoiseSource
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling import Sampler
from ostinato.parity.aligner import CallRecord
from ostinato.parity.compare import Comparison, ValueKey, compare_exact, compare_value
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.solver import ONE_STEP, Solver, solver_of
from ostinato.parity.subject import Recorded
from ostinato.parity.tolerances import EXACT, Tolerance
from ostinato.request import GenerationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """One run of a loop, sorted. steps: the calls of each denoise step. stores: by block."""

    spec: GenerationSpec
    noise: NoiseSource
    steps: tuple[tuple[CallRecord, ...], ...]
    stores: tuple[CallRecord, ...]
    latents: torch.Tensor
    frames_per_block: int
    window_blocks: int


def course(run: Recorded, loop: LoopSpec, bound: Sampler[object] | None) -> Iterator[Comparison]:
    """Compare what was fed with what had to be.

    bound: the float64 reference of the sampler, where it is a component of the model. Raises
    NothingMeasured when the run has not the steps that were asked for, or when its sampler has no
    float64 steps.
    """
    ran = _sorted(run, loop)
    solver = solver_of(ran.spec, bound)
    num_steps, frames = ran.spec.num_inference_steps, ran.latents.shape[2]
    num_blocks = -(-frames // ran.frames_per_block)
    if len(ran.steps) != num_blocks * num_steps:
        raise NothingMeasured(
            f"the run made {len(ran.steps)} denoise steps, expected {num_steps} of each of "
            f"{num_blocks} blocks"
        )
    for block, store in enumerate(ran.stores):
        yield from _position(ran, store, block)
    for index, calls in enumerate(ran.steps):
        block, step = divmod(index, num_steps)
        if step == 0:
            yield _begun(ran, calls[0], block)
        for call in calls:
            yield from _position(ran, call, block)
            time = solver.timesteps[step]
            yield _value(call, "timestep", call.inputs["timestep"], time, ONE_STEP)
        yield _stepped(ran, solver, block, step)


def _sorted(run: Recorded, loop: LoopSpec) -> _Course:
    spec, latents = run.output.provenance.spec, run.output.latents
    steps, stores = dict[int, list[CallRecord]](), list[CallRecord]()
    for call in run.calls:
        if call.component != loop.binds.get("denoiser"):
            continue
        if "timestep" in call.inputs:
            steps.setdefault(call.unit.step, []).append(call)
        elif "first_frame" in call.inputs:
            stores.append(call)
    return _Course(
        spec=spec,
        noise=NoiseSource(str(loop.options.get("noise", NoiseSource.KEYED))),
        steps=tuple(tuple(calls) for calls in steps.values()),
        stores=tuple(stores),
        latents=latents,
        frames_per_block=cast("int", loop.options.get("frames_per_block", latents.shape[2])),
        window_blocks=cast("int", loop.options.get("window_blocks", 1)),
    )


def _position(ran: _Course, call: CallRecord, block: int) -> Iterator[Comparison]:
    """Compare where a block begins and what it attends to: the newest of a window, in order."""
    if "first_frame" in call.inputs:
        first = torch.tensor(block * ran.frames_per_block)
        yield _value(call, "first_frame", call.inputs["first_frame"], first, EXACT)
    if "context" not in call.inputs:
        return
    seen = ran.stores[max(0, block - ran.window_blocks + 1) : block]
    stored = [cast("tuple[LayerKV, ...]", store.outputs["layers"]) for store in seen]
    expected = tuple(
        ContextKV(
            torch.cat([layer.key_rotated for layer in layers], dim=1),
            torch.cat([layer.value for layer in layers], dim=1),
        )
        for layers in zip(*stored, strict=True)
    )
    mine, other = (
        replace(call, taps=(), outputs={"fed context": context or None})
        for context in (call.inputs["context"], expected)
    )
    yield from compare_exact(mine, other)


def _begun(ran: _Course, call: CallRecord, block: int) -> Comparison:
    """Compare the noise that a block starts from with what the seed gives, bit for bit."""
    stream = NoiseStream(seed=ran.spec.seed)
    shape = tuple(as_tensor(call.inputs["latents"], "latents").shape)
    if ran.noise is NoiseSource.ORACLE:
        expected = torch.randn(shape, generator=stream.oracle_generator(), dtype=torch.float32)
    else:
        expected = stream.normal(shape, "initial", block)
    return _value(call, "initial noise", call.inputs["latents"], expected, EXACT)


def _stepped(ran: _Course, solver: Solver, block: int, step: int) -> Comparison:
    """Compare the latents that a step led to with its own predictions, combined in float64."""
    num_steps = ran.spec.num_inference_steps
    calls = ran.steps[block * num_steps + step]
    latents = as_tensor(calls[0].inputs["latents"], "latents")
    rows_BCFHW = torch.cat([as_tensor(c.outputs["prediction"], "prediction") for c in calls])
    velocity = to_array(rows_BCFHW[:1])
    if ran.spec.guidance_scale > 1.0:
        velocity = classifier_free_guidance(
            velocity, to_array(rows_BCFHW[1:]), ran.spec.guidance_scale
        )
    expected = solver.step(block, step, latents, velocity)
    found = _led_to(ran, block, step, num_steps)
    return _value(
        calls[0], "next latents", found, expected[:, :, : found.shape[2]], solver.tolerance
    )


def _led_to(ran: _Course, block: int, step: int, num_steps: int) -> torch.Tensor:
    """Return what the next step was fed, or of the last step what was delivered."""
    if step + 1 < num_steps:
        following = ran.steps[block * num_steps + step + 1][0]
        return as_tensor(following.inputs["latents"], "latents")
    first = block * ran.frames_per_block
    return ran.latents[:, :, first : first + ran.frames_per_block]


def _value(
    call: CallRecord, name: str, found: object, expected: torch.Tensor, tolerance: Tolerance
) -> Comparison:
    key = ValueKey(f"fed {name}", 0)
    return compare_value(call, key, as_tensor(found, name), expected, tolerance)
