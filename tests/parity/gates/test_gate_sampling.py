"""Samplers, schedules and guidance against float64."""

from __future__ import annotations

import dataclasses

import pytest

from ostinato.card import ModelSource
from ostinato.errors import InvalidCard
from ostinato.loop.sampling import Schedule
from ostinato.loop.sampling.library import LibrarySampler
from ostinato.parity.gates.sampling import sampling
from ostinato.parity.subject import Subject, VerifyOptions


def test_sampling_passes_and_bites(
    builtin: Subject, wan: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for subject, count in ((builtin, 2 * 7 + 1), (wan, 7 + 1)):
        result = sampling(subject)
        assert result.passed, result.message
        assert result.measured == count
    monkeypatch.setattr(
        "ostinato.loop.sampling.steppers.FlowEuler.step",
        lambda self, x, v, sigma, sigma_next, memory: (x + (sigma_next - sigma) * v * 1.0001, None),
    )
    result = sampling(builtin)
    assert not result.passed
    assert "'step' (occurrence 0) of euler" in result.message


def test_a_wrong_time_of_the_network_is_red(
    builtin: Subject, wan: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.loop.sampling.schedules.NUM_TRAIN_TIMESTEPS", 700)
    result = sampling(builtin)
    assert not result.passed
    assert "'timesteps' (occurrence 0) of euler" in result.message
    schedule = LibrarySampler.schedule

    def late(self: LibrarySampler, num_steps: int, flow_shift: float | None) -> Schedule:
        made = schedule(self, num_steps, flow_shift)
        return dataclasses.replace(made, timesteps=made.timesteps - 1)

    monkeypatch.setattr(LibrarySampler, "schedule", late)
    result = sampling(wan)
    assert "'timesteps' (occurrence 0) of unipc" in result.message


def test_a_sampler_or_rule_without_a_reference_is_red(builtin_source: ModelSource) -> None:
    card = builtin_source.card
    loop = card.loops[0]
    for changed, what in (
        (
            {"capabilities": dataclasses.replace(card.capabilities, samplers=("dpm",))},
            "sampler 'dpm'",
        ),
        (
            {
                "loops": (
                    dataclasses.replace(loop, options={**loop.options, "guidance_rule": "apg"}),
                )
            },
            "guidance rule 'apg'",
        ),
    ):
        source = dataclasses.replace(builtin_source, card=dataclasses.replace(card, **changed))
        with pytest.raises(InvalidCard, match=f"{what} has no float64 reference"):
            sampling(Subject(source, VerifyOptions()))
