"""Where each step of a run has to lead, in float64: the solvers that a course is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ostinato.backend.reference.arrays import Array
from ostinato.backend.reference.component import to_array, to_tensor
from ostinato.backend.reference.sampling import flow_sigmas
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling import Sampler, Schedule
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.sampling import NEAR_POLE, NETWORK_TIME, PURE_STEPS
from ostinato.parity.tolerances import Tolerance
from ostinato.request import GenerationSpec

# Measured 1e-7 on the tiny folder; guidance multiplies the rounding of a prediction.
ONE_STEP = Tolerance(largest=5e-6, rms=5e-6, reason="rounding of one guided step, measured 1e-7")


class Solver(Protocol):
    """The schedule of a request and its steps, asked block by block in the order of the run."""

    @property
    def timesteps(self) -> torch.Tensor:
        """What the network has to be fed at each step, [num_inference_steps]."""
        ...

    @property
    def tolerance(self) -> Tolerance:
        """How far a float32 step may lie from this one."""
        ...

    def step(self, block: int, index: int, latents: torch.Tensor, velocity: Array) -> torch.Tensor:
        """Return the float64 latents that this step leads to."""
        ...


def solver_of(spec: GenerationSpec, bound: Sampler[object] | None) -> Solver:
    """Return the solver of a request; bound: the reference of a sampler that is a component.

    Raises NothingMeasured for a sampler that has no float64 steps.
    """
    if bound is not None:
        return _Bound(bound, spec)
    if spec.sampler not in PURE_STEPS:
        raise NothingMeasured(
            f"sampler {spec.sampler!r} has no float64 steps, so where a run has to go is not known"
        )
    return _Pure(spec)


@dataclass(frozen=True, slots=True)
class _Pure:
    """A sampler that keeps nothing from step to step."""

    spec: GenerationSpec

    @property
    def timesteps(self) -> torch.Tensor:
        return to_tensor(NETWORK_TIME * self._sigmas()[:-1])

    @property
    def tolerance(self) -> Tolerance:
        return ONE_STEP

    def step(self, block: int, index: int, latents: torch.Tensor, velocity: Array) -> torch.Tensor:
        sigmas, shape = self._sigmas(), tuple(latents.shape)
        fresh = NoiseStream(seed=self.spec.seed).normal(shape, "renoise", block, index)
        step = PURE_STEPS[self.spec.sampler]
        moved = step(to_array(latents), velocity, sigmas[index], sigmas[index + 1], to_array(fresh))
        return to_tensor(moved)

    def _sigmas(self) -> Array:
        shift = self.spec.flow_shift
        assert shift is not None, "a sampler that is no component takes the shift of the request"
        return flow_sigmas(self.spec.num_inference_steps, shift)


class _Bound:
    """A sampler of the model's reference, which remembers what it was shown at the steps before."""

    def __init__(self, sampler: Sampler[object], spec: GenerationSpec) -> None:
        self._sampler, self._noise = sampler, NoiseStream(seed=spec.seed)
        self._schedule: Schedule = sampler.schedule(spec.num_inference_steps, spec.flow_shift)
        self._memory: object = None

    @property
    def timesteps(self) -> torch.Tensor:
        return self._schedule.timesteps

    @property
    def tolerance(self) -> Tolerance:
        return NEAR_POLE

    def step(self, block: int, index: int, latents: torch.Tensor, velocity: Array) -> torch.Tensor:
        if index == 0:
            self._memory = self._sampler.start(self._schedule, self._noise, block)
        sigma, sigma_next = (float(value) for value in self._schedule.sigmas[index : index + 2])
        moved, self._memory = self._sampler.step(
            latents.double(), to_tensor(velocity), sigma, sigma_next, self._memory
        )
        return moved
