"""Samplers: pure, exact where the velocity field is known, keyed where they draw."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ostinato.errors import InvalidRequest
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling import FlowEuler, FlowRenoise, Sampler, sampler_by_name, unknown_sampler

CLEAN = torch.randn(1, 4, 2, 3, 3, generator=torch.Generator().manual_seed(1))
NOISE = NoiseStream(seed=9).normal((1, 4, 2, 3, 3), "initial", 0)


def run(
    sampler: Sampler, *, steps: int, flow_shift: float | None, seed: int = 9, block: int = 0
) -> list[torch.Tensor]:
    """Step along the straight path: v = noise - clean for the sample at hand, x0 = clean."""
    schedule = sampler.schedule(steps, flow_shift)
    memory = sampler.start(schedule, NoiseStream(seed=seed), block)
    x, path = NOISE, [NOISE]
    for sigma, sigma_next in zip(schedule.sigmas[:-1], schedule.sigmas[1:], strict=True):
        velocity = (x - CLEAN) / sigma
        x, memory = sampler.step(x, velocity, float(sigma), float(sigma_next), memory)
        path.append(x)
    return path


@pytest.mark.parametrize("sampler", [FlowEuler(), FlowRenoise()])
@pytest.mark.parametrize("flow_shift", [None, 1.0, 5.0])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_straight_path_ends_at_the_clean_latents(
    sampler: Sampler, flow_shift: float | None, steps: int
) -> None:
    torch.testing.assert_close(run(sampler, steps=steps, flow_shift=flow_shift)[-1], CLEAN)


def test_euler_stays_on_the_straight_path() -> None:
    sigmas = FlowEuler().schedule(5, 3.0).sigmas
    for sigma, x in zip(sigmas, run(FlowEuler(), steps=5, flow_shift=3.0), strict=True):
        torch.testing.assert_close(x, (1 - sigma) * CLEAN + sigma * NOISE)


def test_euler_on_a_field_that_is_not_straight() -> None:
    """dx/dsigma = x from 1 to 0 multiplies by (1 - 1/n)^n, which tends to 1/e."""
    for steps in (1, 2, 50):
        sigmas = FlowEuler().schedule(steps, None).sigmas.tolist()
        x = torch.ones(1, dtype=torch.float64)
        for sigma, sigma_next in pairwise(sigmas):
            x, _ = FlowEuler().step(x, x, sigma, sigma_next, None)
        assert x.item() == pytest.approx((1 - 1 / steps) ** steps, rel=1e-6)


def test_renoise_takes_fresh_noise_by_seed_block_and_step() -> None:
    sigmas = FlowRenoise().schedule(3, None).sigmas
    path = run(FlowRenoise(), steps=3, flow_shift=None, seed=9, block=4)
    for step, sigma in ((0, sigmas[1]), (1, sigmas[2])):
        fresh = NoiseStream(seed=9).normal(tuple(CLEAN.shape), "renoise", 4, step)
        torch.testing.assert_close(path[step + 1], (1 - sigma) * CLEAN + sigma * fresh)
    other_block = run(FlowRenoise(), steps=3, flow_shift=None, seed=9, block=5)
    other_seed = run(FlowRenoise(), steps=3, flow_shift=None, seed=8, block=4)
    for other in (other_block, other_seed):
        assert not torch.allclose(path[1], other[1])


@pytest.mark.parametrize("sampler", [FlowEuler(), FlowRenoise()])
def test_a_step_is_pure(sampler: Sampler) -> None:
    memory = sampler.start(sampler.schedule(4, None), NoiseStream(seed=1), 0)
    x, velocity = NOISE.clone(), CLEAN.clone()
    first, after = sampler.step(x, velocity, 1.0, 0.75, memory)
    second, again = sampler.step(x, velocity, 1.0, 0.75, memory)
    assert torch.equal(first, second)
    assert after == again
    assert torch.equal(x, NOISE)
    assert torch.equal(velocity, CLEAN)


@pytest.mark.parametrize("sampler", [FlowEuler(), FlowRenoise()])
def test_a_given_shift_is_the_one_that_is_used(sampler: Sampler) -> None:
    assert sampler.schedule(4, 3.0).flow_shift == 3.0
    assert sampler.schedule(4, None).flow_shift == 1.0
    assert not torch.equal(sampler.schedule(4, 3.0).sigmas, sampler.schedule(4, None).sigmas)
    with pytest.raises(AssertionError):
        sampler.schedule(4, 0.0)


def test_samplers_by_name() -> None:
    assert sampler_by_name("euler") == FlowEuler()
    assert sampler_by_name("renoise") == FlowRenoise()
    assert unknown_sampler("euler") == ()
    with pytest.raises(InvalidRequest, match=r"'dpm'; valid: \['euler', 'renoise'\]"):
        sampler_by_name("dpm")
