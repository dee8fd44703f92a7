"""Schedules of rectified flow, against the identities that define them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.loop.sampling import flow_schedule, shift_sigmas

shifts = st.floats(0.1, 20.0)
steps = st.integers(1, 100)


@given(shifts)
def test_a_shift_adds_its_logarithm_to_the_logit(flow_shift: float) -> None:
    sigmas = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    found = torch.logit(shift_sigmas(sigmas, flow_shift))
    torch.testing.assert_close(found, torch.logit(sigmas) + torch.tensor(flow_shift).double().log())


@given(shifts, shifts)
def test_shifts_compose_by_multiplication(one: float, other: float) -> None:
    sigmas = torch.linspace(0, 1, 33, dtype=torch.float64)
    twice = shift_sigmas(shift_sigmas(sigmas, one), other)
    torch.testing.assert_close(twice, shift_sigmas(sigmas, one * other))


@given(steps, shifts)
def test_a_schedule_goes_from_noise_to_clean(num_steps: int, flow_shift: float) -> None:
    schedule = flow_schedule(num_steps, flow_shift)
    assert schedule.num_steps == num_steps
    assert schedule.sigmas.dtype == schedule.timesteps.dtype == torch.float32
    assert schedule.sigmas[0] == 1
    assert schedule.sigmas[-1] == 0
    assert (schedule.sigmas.diff() < 0).all()
    assert torch.equal(schedule.timesteps, schedule.sigmas[:-1] * 1000)
    assert schedule.flow_shift == flow_shift


def test_no_shift_is_even() -> None:
    sigmas = flow_schedule(4, 1.0).sigmas
    assert sigmas.tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_known_values() -> None:
    """k = 3: 3 s / (1 + 2 s) at s = 1, 3/4, 1/2, 1/4, 0."""
    assert flow_schedule(4, 3.0).sigmas.tolist() == pytest.approx([1, 0.9, 0.75, 0.5, 0])
