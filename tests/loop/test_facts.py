"""Facts: what a loop plans by before a weight is loaded."""

from __future__ import annotations

import pytest

from ostinato.errors import InvalidCard
from ostinato.loop.facts import DenoiserFacts, LatentFacts, fact


@pytest.mark.parametrize(
    ("causal", "counts"),
    [
        (True, {1: 1, 2: 1, 4: 1, 5: 2, 8: 2, 9: 3, 81: 21}),
        (False, {1: 1, 4: 1, 5: 2, 8: 2, 9: 3, 96: 24}),
    ],
)
def test_latent_frames(causal: bool, counts: dict[int, int]) -> None:
    facts = LatentFacts(temporal_stride=4, spatial_stride=8, causal=causal)
    assert {frames: facts.num_latent_frames(frames) for frames in counts} == counts


def test_a_role_that_is_bound_to_something_else() -> None:
    facts = {"latents": LatentFacts(temporal_stride=4, spatial_stride=8, causal=True)}
    assert fact(facts, "latents", LatentFacts) is facts["latents"]
    with pytest.raises(InvalidCard, match=r"'latents' is bound to .*LatentFacts.*DenoiserFacts"):
        fact(facts, "latents", DenoiserFacts)
    with pytest.raises(InvalidCard, match="NoneType"):
        fact(facts, "denoiser", DenoiserFacts)
