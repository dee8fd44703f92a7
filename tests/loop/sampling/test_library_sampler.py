"""The library's schedulers behind the sampler contract: equal steps, nothing shared, no pickle."""

from __future__ import annotations

import copy
import json
from typing import cast

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from ostinato.errors import InvalidCheckpoint, InvalidRequest
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling import LibrarySampler, LibraryScheduler, Schedule, SchedulerMemory

Scheduler = UniPCMultistepScheduler | FlowMatchEulerDiscreteScheduler
NOISE = NoiseStream(seed=0)


def unipc(**config: object) -> UniPCMultistepScheduler:
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return UniPCMultistepScheduler(**(flow | config))


def euler(**config: object) -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(**({"shift": 3.0} | config))


MAKERS = (
    pytest.param(unipc, id="unipc"),
    pytest.param(lambda **config: unipc(solver_order=3, **config), id="unipc3"),
    pytest.param(euler, id="flow_match_euler"),
)


def sampler_of(scheduler: Scheduler) -> LibrarySampler:
    return LibrarySampler(cast("LibraryScheduler", scheduler))


def velocity(x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    return torch.tanh(3 * x) + float(timestep) / 1000


def begin(
    sampler: LibrarySampler, num_steps: int, flow_shift: float | None = None
) -> tuple[Schedule, SchedulerMemory]:
    schedule = sampler.schedule(num_steps, flow_shift)
    return schedule, sampler.start(schedule, NOISE, 0)


def advance(
    sampler: LibrarySampler, schedule: Schedule, x: torch.Tensor, memory: SchedulerMemory
) -> tuple[torch.Tensor, SchedulerMemory]:
    step = memory.step
    sigma, following = float(schedule.sigmas[step]), float(schedule.sigmas[step + 1])
    return sampler.step(x, velocity(x, schedule.timesteps[step]), sigma, following, memory)


def library_run(scheduler: Scheduler, x: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
    scheduler.set_timesteps(num_steps, device="cpu")
    scheduler.set_begin_index(0)
    states = [x]
    for timestep in scheduler.timesteps:
        x = scheduler.step(velocity(x, timestep), timestep, x, return_dict=False)[0]
        states.append(x)
    return states


@pytest.fixture
def noise() -> torch.Tensor:
    return torch.randn(1, 4, 3, 4, 4, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("num_steps", [1, 2, 7, 20])
@pytest.mark.parametrize("make", MAKERS)
def test_every_step_is_the_librarys(
    make: type[Scheduler], num_steps: int, noise: torch.Tensor
) -> None:
    expected = library_run(make(), noise, num_steps)
    sampler = sampler_of(make())
    schedule, memory = begin(sampler, num_steps)
    assert schedule.num_steps == num_steps
    x = noise
    for state in expected[1:]:
        x, memory = advance(sampler, schedule, x, memory)
        assert torch.equal(x, state)


@pytest.mark.parametrize(("make", "name"), [(unipc, "flow_shift"), (euler, "shift")])
def test_a_flow_shift_is_a_setting_of_the_request(
    make: type[Scheduler], name: str, noise: torch.Tensor
) -> None:
    sampler = sampler_of(make())
    assert sampler.flow_shift == 3.0
    expected = library_run(make(**{name: 8.0}), noise, 5)
    schedule, memory = begin(sampler, 5, flow_shift=8.0)
    x = noise
    for state in expected[1:]:
        x, memory = advance(sampler, schedule, x, memory)
        assert torch.equal(x, state)
    assert sampler.flow_shift == 3.0


@pytest.mark.parametrize("make", MAKERS)
def test_requests_that_share_a_sampler_do_not_meet(
    make: type[Scheduler], noise: torch.Tensor
) -> None:
    sampler = sampler_of(make())
    lengths, x = (6, 4, 9), [noise, noise * 2, noise - 1]
    expected = [library_run(make(), start, n) for start, n in zip(x, lengths, strict=True)]
    runs = [begin(sampler, n) for n in lengths]
    memories = [memory for _, memory in runs]
    for step in range(max(lengths)):
        for index, (schedule, _) in enumerate(runs):
            if step < lengths[index]:
                x[index], memories[index] = advance(sampler, schedule, x[index], memories[index])
                assert torch.equal(x[index], expected[index][step + 1])


@pytest.mark.parametrize("make", MAKERS)
def test_a_step_is_pure(make: type[Scheduler], noise: torch.Tensor) -> None:
    sampler = sampler_of(make())
    schedule, memory = begin(sampler, 5)
    x = noise
    for _ in range(5):
        before, kept_x = copy.deepcopy(memory), x.clone()
        first, following = advance(sampler, schedule, x, memory)
        again, _ = advance(sampler, schedule, x, memory)
        assert torch.equal(first, again)
        assert torch.equal(x, kept_x)
        assert plain(memory.attributes) == plain(before.attributes)
        x, memory = first, following


@pytest.mark.parametrize("make", MAKERS)
def test_a_memory_survives_as_plain_data(make: type[Scheduler], noise: torch.Tensor) -> None:
    """Through JSON and back into another process's sampler, in the middle of a trajectory."""
    expected = library_run(make(), noise, 6)
    sampler = sampler_of(make())
    schedule, memory = begin(sampler, 6)
    x = noise
    for _ in range(3):
        x, memory = advance(sampler, schedule, x, memory)
    stored = json.loads(json.dumps(plain(memory.attributes)))
    revived = SchedulerMemory(
        attributes={name: revive(value) for name, value in stored.items()},
        step=memory.step,
        flow_shift=memory.flow_shift,
    )
    other = sampler_of(make())
    for state in expected[4:]:
        x, revived = advance(other, schedule, x, revived)
        assert torch.equal(x, state)


def plain(value: object) -> object:
    """Spell tensors as {dtype, values}; fails on anything that is not plain data."""
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, tuple):
        return [plain(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in cast("dict[str, object]", value).items()}
    assert value is None or isinstance(value, bool | int | float | str)
    return value


def revive(value: object) -> object:
    if isinstance(value, dict):
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
    return tuple(revive(item) for item in value) if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("scheduler", "word"),
    [
        (unipc(prediction_type="epsilon"), "epsilon"),
        (unipc(use_flow_sigmas=False), "use_flow_sigmas"),
        (unipc(use_dynamic_shifting=True), "mu"),
        (unipc(solver_p=euler()), "solver_p"),
        (euler(use_dynamic_shifting=True), "mu"),
        (euler(stochastic_sampling=True), "process-wide generator"),
    ],
)
def test_schedulers_that_cannot_be_served_are_refused(scheduler: Scheduler, word: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=word):
        sampler_of(scheduler)


def test_a_flow_shift_without_effect_is_refused() -> None:
    sampler = sampler_of(unipc(use_karras_sigmas=True))
    assert not sampler.takes_flow_shift
    with pytest.raises(InvalidRequest, match=r"flow_shift is 5\.0"):
        sampler.schedule(4, 5.0)
    assert sampler_of(euler()).takes_flow_shift
