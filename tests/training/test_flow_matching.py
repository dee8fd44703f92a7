"""Noise mix and loss of flow matching."""

from __future__ import annotations

import pytest
import torch

from ostinato.training.config import FlowMatchingConfig, NoiseMix
from ostinato.training.methods.flow_matching import (
    flow_matching_loss,
    noise_latents,
    sample_single_sigmas,
    sample_window_sigmas,
    shift_sigmas,
)

BATCH = 4000


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _window(
    independent: float = 0.35, ladder: float = 0.30, context_noise_share: float = 0.40
) -> tuple[torch.Tensor, torch.Tensor]:
    noise = NoiseMix(
        independent=independent, ladder=ladder, context_noise_share=context_noise_share
    )
    return sample_window_sigmas(BATCH, FlowMatchingConfig(noise=noise), _generator())


def test_shift_adds_the_logarithm_of_the_shift_to_the_logit() -> None:
    sigmas = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    shifted = shift_sigmas(sigmas, 3.0)
    assert torch.allclose(
        torch.logit(shifted), torch.logit(sigmas) + torch.tensor(3.0).double().log()
    )


def test_single_chunks_are_noisy_and_stratified() -> None:
    config = FlowMatchingConfig(flow_shift=1.0)
    sigmas, weights = sample_single_sigmas(60, config, _generator())
    assert torch.equal((sigmas[:, 0] * 60).floor(), torch.arange(60.0))
    assert torch.equal(weights, torch.ones(60, 1))


def test_independent_chunks_are_clean_at_their_probability_and_carry_no_loss() -> None:
    sigmas, weights = _window(independent=1.0, ladder=0.0, context_noise_share=0)
    clean = sigmas == 0
    assert clean.float().mean() == pytest.approx(0.35, abs=0.01)
    assert torch.equal(weights, (~clean).float())
    # Uniform noise u with shift 3 has its median at 3 * .5 / (1 + 2 * .5) = 0.75.
    assert sigmas[~clean].median() == pytest.approx(0.75, abs=0.01)


def test_a_clean_history_is_a_prefix_of_every_length() -> None:
    sigmas, weights = _window(independent=0.0, ladder=0.0, context_noise_share=0)
    clean = sigmas == 0
    lengths = clean.sum(1)
    assert torch.equal(clean, torch.arange(6)[None] < lengths[:, None])
    assert torch.equal(lengths.unique(), torch.arange(1, 6))
    assert torch.equal(weights, (~clean).float())


def test_a_ladder_rises_toward_newer_chunks() -> None:
    sigmas, weights = _window(independent=0.0, ladder=1.0, context_noise_share=0)
    assert (sigmas.diff(dim=1) >= 0).all()
    assert (sigmas.diff(dim=1)[weights[:, 1:] > 0] > 0).all()
    assert not weights[sigmas == 0].any()
    assert (weights.sum(1) >= 3).all()
    # Chunks behind one that is still pure noise are not learned from.
    blind = (sigmas[:, 1:] == 1) & (sigmas[:, :-1] == 1)
    assert blind.any()
    assert not weights[:, 1:][blind].any()


def test_context_noise_is_small_and_only_on_clean_chunks() -> None:
    plain, _ = _window(context_noise_share=0.0)
    sigmas, weights = _window()
    changed = sigmas != plain
    assert torch.equal(changed.any(1).float().mean() > 0.3, torch.tensor(True))
    assert (plain[changed] == 0).all()
    assert sigmas[changed].max() < 0.15
    assert not weights[changed].any()


def test_the_mix_has_the_stated_shares() -> None:
    torch.manual_seed(0)
    ladder_only, _ = _window(independent=0.0, ladder=0.3, context_noise_share=0.0)
    rising = (ladder_only.diff(dim=1) >= 0).all(1)
    # A clean prefix followed by one to five free chunks rises by chance in some samples too.
    assert 0.3 < rising.float().mean() < 0.62


def test_noised_latents_recover_the_clean_ones_from_the_target() -> None:
    clean = torch.randn(5, 16, 18, 8, 8, generator=_generator())
    sigmas = torch.rand(5, 6, generator=_generator())
    noisy = noise_latents(clean, sigmas, _generator())
    level = (noisy.timesteps / 1000)[:, None, :, None, None]
    assert torch.allclose(noisy.latents - level * noisy.target, clean, atol=1e-5)
    assert torch.equal(noisy.timesteps[:, 0], 1000 * sigmas[:, 0])
    assert torch.equal(noisy.timesteps[:, 0], noisy.timesteps[:, 2])


def test_loss_ignores_chunks_of_weight_zero() -> None:
    target = torch.zeros(2, 4, 6, 8, 8)
    velocity = torch.zeros_like(target)
    velocity[:, :, :3] = 2.0
    velocity[:, :, 3:] = 100.0
    weights = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert flow_matching_loss(velocity, target, weights) == pytest.approx(4.0)
