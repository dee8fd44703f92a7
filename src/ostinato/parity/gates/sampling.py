"""C0, sampling: schedules, sampler steps and guidance against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import torch

from ostinato.backend.reference.component import to_array, to_tensor
from ostinato.backend.reference.sampling import (
    classifier_free_guidance,
    flow_euler_step,
    flow_renoise_step,
    flow_sigmas,
)
from ostinato.card import LoopSpec, ModelSource
from ostinato.errors import InvalidCard
from ostinato.loop.noise import NoiseStream
from ostinato.loop.observe import Unit
from ostinato.loop.policies.guidance import Branch, guidance_rule
from ostinato.loop.sampling import Sampler, sampler_by_name
from ostinato.parity.compare import Comparison, Verdict
from ostinato.parity.gate import GateResult, Rung, Tally
from ostinato.parity.subject import Subject
from ostinato.parity.tolerances import Tolerance, measure
from ostinato.runtime import ResidentModel
from ostinato.tasks import RequestId

NAME = "sampling"
NETWORK_TIME = 1000.0
"""What sigma is multiplied by for the network: https://arxiv.org/abs/2403.03206 keeps DDPM's."""

_SEED, _STEPS, _SHIFT, _SCALE = 20260801, 5, 3.0, 3.0
_SHAPE = (1, 16, 3, 8, 8)
# Measured 1e-7 to 3e-7 over five steps.
_ROUNDED = Tolerance(largest=3e-6, rms=3e-6, reason="rounding of five steps, measured 3e-7")
# UniPC begins where log(1 - sigma) is within 1e-6 of its pole, so float32 sigmas cost it digits.
NEAR_POLE = Tolerance(largest=3e-5, rms=3e-5, reason="1 - sigma of 1e-6 rounded, measured 8e-6")


class _Pair(NamedTuple):
    """A sampler as served and in float64, by the name of what is compared."""

    name: str
    served: Sampler[object]
    reference: Sampler[object] | None


Step: TypeAlias = Callable[[np.ndarray, np.ndarray, float, float, np.ndarray], np.ndarray]
PURE_STEPS: Mapping[str, Step] = MappingProxyType(
    {
        "euler": lambda x, v, s, s_next, noise: flow_euler_step(x, v, s, s_next),
        "renoise": flow_renoise_step,
    }
)


def sampling(subject: Subject) -> GateResult:
    """Drive each sampler of the card for some steps over seeded velocities, and guide them.

    Raises InvalidCard for a sampler or guidance rule that has no reference.
    """
    tally = Tally()
    for loop in subject.card.loops:
        for pair in _pairs(subject, loop):
            tally.add(_library(pair) if pair.reference is not None else _pure(pair))
        tally.add(_guidance(loop))
    return tally.result(
        NAME,
        Rung.C0,
        f"{tally.measured} sigmas, timesteps, steps and guidance are those of float64",
    )


def bound_sampler(source: ModelSource, loop: LoopSpec) -> Sampler[object] | None:
    """Return the sampler that a component of this model gives a loop, None where none is bound."""
    if "sampler" not in loop.binds:
        return None
    return cast("Sampler[object]", ResidentModel(source).loop_facts(loop.name)["sampler"])


def _pairs(subject: Subject, loop: LoopSpec) -> Iterator[_Pair]:
    served = bound_sampler(subject.source, loop)
    if served is None:
        for name in subject.card.capabilities.samplers:
            if name not in PURE_STEPS:
                raise InvalidCard(f"sampler {name!r} has no float64 reference to measure it by")
            yield _Pair(name, sampler_by_name(name), None)
        return
    reference = bound_sampler(subject.reference, loop)
    yield _Pair(subject.card.capabilities.samplers[0], served, reference)


def _library(pair: _Pair) -> Iterator[Comparison]:
    """Drive both; each goes on from what it computed itself."""
    assert pair.reference is not None, "asked only of a pair that has one"
    noise = NoiseStream(seed=_SEED)
    schedules = [sampler.schedule(_STEPS, _SHIFT) for sampler in (pair.served, pair.reference)]
    yield _held(pair.name, "sigmas", 0, schedules[0].sigmas, schedules[1].sigmas)
    yield _held(pair.name, "timesteps", 0, schedules[0].timesteps, schedules[1].timesteps)
    memories = [
        sampler.start(schedule, noise, 0)
        for sampler, schedule in zip((pair.served, pair.reference), schedules, strict=True)
    ]
    xs = [noise.normal(_SHAPE, "initial", 0)] * 2
    xs[1] = xs[1].double()
    for step in range(_STEPS):
        velocity = noise.normal(_SHAPE, "velocity", step)
        for side, sampler in enumerate((pair.served, pair.reference)):
            sigmas = schedules[side].sigmas
            xs[side], memories[side] = sampler.step(
                xs[side],
                velocity if side == 0 else velocity.double(),
                float(sigmas[step]),
                float(sigmas[step + 1]),
                memories[side],
            )
        yield _held(pair.name, "step", step, xs[0], xs[1])


def _pure(pair: _Pair) -> Iterator[Comparison]:
    noise, step_of = NoiseStream(seed=_SEED), PURE_STEPS[pair.name]
    schedule = pair.served.schedule(_STEPS, _SHIFT)
    sigmas = flow_sigmas(_STEPS, _SHIFT)
    yield _held(pair.name, "sigmas", 0, schedule.sigmas, to_tensor(sigmas))
    timesteps = to_tensor(NETWORK_TIME * sigmas[:-1])
    yield _held(pair.name, "timesteps", 0, schedule.timesteps, timesteps)
    memory = pair.served.start(schedule, noise, 0)
    x = noise.normal(_SHAPE, "initial", 0)
    expected = to_array(x)
    for step in range(_STEPS):
        velocity = noise.normal(_SHAPE, "velocity", step)
        fresh = to_array(noise.normal(_SHAPE, "renoise", 0, step))
        sigma, sigma_next = float(schedule.sigmas[step]), float(schedule.sigmas[step + 1])
        x, memory = pair.served.step(x, velocity, sigma, sigma_next, memory)
        expected = step_of(expected, to_array(velocity), sigmas[step], sigmas[step + 1], fresh)
        yield _held(pair.name, "step", step, x, to_tensor(expected))


def _guidance(loop: LoopSpec) -> Iterator[Comparison]:
    name = str(loop.options.get("guidance_rule", "classifier_free"))
    if name != "classifier_free":
        raise InvalidCard(f"guidance rule {name!r} has no float64 reference to measure it by")
    noise = NoiseStream(seed=_SEED)
    cond, uncond = (noise.normal(_SHAPE, "branch", index) for index in range(2))
    combined, _ = guidance_rule(name).combine(
        {Branch.COND: cond, Branch.UNCOND: uncond}, _SCALE, cond, 1.0, None
    )
    expected = classifier_free_guidance(to_array(cond), to_array(uncond), _SCALE)
    yield _held(name, "guidance", 0, combined, to_tensor(expected))


def _held(
    sampler: str, tap: str, occurrence: int, found: torch.Tensor, expected: torch.Tensor
) -> Comparison:
    errors, tolerance = measure(found, expected), NEAR_POLE if sampler == "unipc" else _ROUNDED
    return Comparison(
        unit=Unit(RequestId(""), "sampling", occurrence + 1),
        component=sampler,
        op="step",
        tap=tap,
        occurrence=occurrence,
        verdict=Verdict.WITHIN if tolerance.allows(errors) else Verdict.BEYOND,
        detail=f"largest error {errors.largest:.3g} of the largest value, rms {errors.rms:.3g}; "
        f"allowed {tolerance.largest:.3g} ({tolerance.reason})",
        errors=errors,
        tolerance=tolerance,
    )
