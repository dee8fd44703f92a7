"""Schedules, steps and guidance in float64: against the library's schedulers and the loop's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

from ostinato.backend.reference.arrays import Array
from ostinato.backend.reference.sampling import (
    classifier_free_guidance,
    flow_euler_step,
    flow_match_euler_sigmas,
    flow_renoise_step,
    flow_sigmas,
    shift_sigmas,
    unipc_flow_sigmas,
)
from ostinato.backend.reference.unipc import UniPCMemory, unipc_step
from ostinato.loop.noise import NoiseStream
from ostinato.loop.policies.guidance import Branch, ClassifierFree
from ostinato.loop.sampling import FlowEuler, FlowRenoise, flow_schedule

Normal = Callable[..., Array]
t = torch.from_numpy


def test_shift_by_hand() -> None:
    np.testing.assert_allclose(shift_sigmas(np.array([0.0, 0.5, 1.0]), 3.0), [0.0, 0.75, 1.0])


@pytest.mark.parametrize(("num_steps", "shift"), [(1, 1.0), (4, 3.0), (20, 3.0), (50, 5.0)])
def test_schedules(num_steps: int, shift: float) -> None:
    """The others keep sigmas in float32: equal to half of its last place."""
    ours = flow_schedule(num_steps, shift)
    np.testing.assert_allclose(flow_sigmas(num_steps, shift), ours.sigmas, rtol=6e-8)

    euler = FlowMatchEulerDiscreteScheduler(shift=shift)
    euler.set_timesteps(num_steps)
    found = flow_match_euler_sigmas(num_steps, shift, 1000)
    # The library rounds the smallest sigma to float32 before it shifts it again.
    np.testing.assert_allclose(found, euler.sigmas, rtol=2e-7)
    np.testing.assert_allclose(1000 * found[:-1], euler.timesteps, rtol=2e-7)

    unipc = _unipc(shift)
    unipc.set_timesteps(num_steps)
    found = unipc_flow_sigmas(num_steps, shift, 1000)
    np.testing.assert_allclose(found, unipc.sigmas, rtol=6e-8)
    np.testing.assert_array_equal((1000 * found[:-1]).astype(np.int64), unipc.timesteps)
    assert found[0] < 1


def test_steps_are_the_loops(normal: Normal) -> None:
    x, velocity = normal(1, 4, 2, 3, 3), normal(1, 4, 2, 3, 3)
    served, _ = FlowEuler().step(t(x), t(velocity), 0.75, 0.5, None)
    np.testing.assert_allclose(flow_euler_step(x, velocity, 0.75, 0.5), served, rtol=1e-14)
    stream, renoise = NoiseStream(seed=3), FlowRenoise()
    memory = renoise.start(flow_schedule(2, 1.0), stream, 5)
    noise = stream.normal(x.shape, "renoise", 5, 0).double().numpy()
    for sigma_next in (0.5, 0.0):
        served, _ = renoise.step(t(x), t(velocity), 0.75, sigma_next, memory)
        found = flow_renoise_step(x, velocity, 0.75, sigma_next, noise)
        np.testing.assert_allclose(found, served, rtol=1e-13)


def test_guidance(normal: Normal) -> None:
    cond, uncond = normal(1, 4, 3), normal(1, 4, 3)
    branches = {Branch.COND: t(cond), Branch.UNCOND: t(uncond)}
    served, _ = ClassifierFree().combine(branches, 2.5, t(cond), 0.5, None)
    np.testing.assert_allclose(classifier_free_guidance(cond, uncond, 2.5), served, rtol=1e-14)
    assert classifier_free_guidance(np.array(3.0), np.array(1.0), 2.0) == 5.0


@pytest.mark.parametrize("solver_order", [1, 2, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 5, 12])
def test_unipc_is_the_librarys_in_float64(
    normal: Normal, num_steps: int, solver_order: int
) -> None:
    """A trajectory through the library's scheduler, its sigmas given in float64.

    It takes all of its steps in the dtype of its sigmas and samples, so the two agree to float64.
    """
    library = _unipc(3.0, solver_order)
    library.set_timesteps(num_steps)
    sigmas = unipc_flow_sigmas(num_steps, 3.0, 1000)
    library.sigmas = t(sigmas)
    library.set_begin_index(0)
    expected = x = normal(1, 4, 2, 3, 3)
    memory = UniPCMemory()
    for step, timestep in enumerate(library.timesteps):
        velocity = np.sin(3.0 * x) + normal(1)
        assert memory.step == step
        x, memory = unipc_step(x, velocity, sigmas, memory, solver_order)
        expected = library.step(t(velocity), timestep, t(expected), return_dict=False)[0]
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-11)
        expected = x


def test_unipc_step_is_pure(normal: Normal) -> None:
    sigmas = unipc_flow_sigmas(4, 3.0, 1000)
    x, memory = unipc_step(normal(1, 4), normal(1, 4), sigmas, UniPCMemory())
    velocity = normal(1, 4)
    first, second = (unipc_step(x, velocity, sigmas, memory)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def _unipc(shift: float, solver_order: int = 2) -> UniPCMultistepScheduler:
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
        solver_order=solver_order,
    )
