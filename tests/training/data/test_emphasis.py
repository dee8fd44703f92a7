"""What a clip shows decides how often it is drawn; a weight that changes nothing is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ostinato.errors import BadInput
from ostinato.models.builtin import world
from ostinato.training.config import FlowMatchingConfig, NoiseMix
from ostinato.training.data.clips import ClipSet, make_scenes
from ostinato.training.data.emphasis import Emphasis


def test_emphasis_draws_what_is_hard_more_often() -> None:
    scenes = make_scenes(0, world.Split.TRAIN, 400)
    clips = ClipSet(latents=torch.zeros(400, 1, 3, 1, 1), scenes=scenes)
    assert clips.with_emphasis(()) is clips
    weighted = clips.with_emphasis((("white", 4.0), ("ring", 2.0)))
    assert weighted.shares is not None
    white = np.array([scene.background.value == "white" for scene in scenes])
    ring = np.array([scene.objects[0].shape.value == "ring" for scene in scenes])
    plain = weighted.shares[~white & ~ring][0]
    assert np.allclose(weighted.shares[white & ~ring], 4 * plain)
    assert np.allclose(weighted.shares[white & ring], 8 * plain)
    assert weighted.shares.sum() == pytest.approx(1.0)
    for index in range(400):
        weighted.latents[index] = float(white[index])
    drawn, _ = weighted.draw(np.random.default_rng(0), 2000, 3, 0.0)
    share = float(drawn[:, 0, 0, 0, 0].mean())
    assert share == pytest.approx(weighted.shares[white].sum(), abs=0.05)
    assert share > white.mean() + 0.1


@pytest.mark.parametrize(
    ("emphasis", "fault"),
    [
        ((("olive", 1.5),), "'olive' is no attribute of a clip"),
        ((("Ring", 2.0), ("ring", 2.0)), "'Ring' is no attribute"),
        ((("ring", 2.0), ("white", 3.0), ("ring", 4.0)), "'ring' is named 2 times"),
        ((("ring", 0.0),), "the weight of 'ring' is 0.0"),
        ((("ring", 1.0),), "the weight of 'ring' is 1.0"),
        ((("ring", -1.0),), "the weight of 'ring' is -1.0"),
        ((("ring", math.inf),), "the weight of 'ring' is inf"),
        ((("ring", math.nan),), "the weight of 'ring' is nan"),
    ],
)
def test_a_weight_that_would_do_nothing_is_refused_with_the_valid_names(
    emphasis: Emphasis, fault: str
) -> None:
    with pytest.raises(BadInput, match=fault) as refused:
        FlowMatchingConfig(emphasis=emphasis)
    for kind in (world.Background, world.Shape, world.Colour, world.Motion):
        assert all(repr(attribute.value) in str(refused.value) for attribute in kind)


def test_every_attribute_of_the_world_can_be_weighted() -> None:
    scenes = make_scenes(0, world.Split.TRAIN, 400)
    plain = ClipSet(latents=torch.zeros(400, 1, 3, 1, 1), scenes=scenes)
    for kind in (world.Background, world.Shape, world.Colour, world.Motion):
        for attribute in kind:
            FlowMatchingConfig(emphasis=((attribute.value, 2.0),))
            shares = plain.with_emphasis(((attribute.value, 2.0),)).shares
            assert shares is not None
            assert shares.max() == pytest.approx(2 * shares.min())


def test_a_weight_of_what_no_clip_shows_is_refused() -> None:
    scenes = [s for s in make_scenes(0, world.Split.TRAIN, 40) if s.background.value == "white"]
    clips = ClipSet(latents=torch.zeros(len(scenes), 1, 3, 1, 1), scenes=tuple(scenes))
    with pytest.raises(BadInput, match=f"0 of {len(scenes)} clips show 'black'"):
        clips.with_emphasis((("black", 2.0),))
    with pytest.raises(BadInput, match=f"{len(scenes)} of {len(scenes)} clips show 'white'"):
        clips.with_emphasis((("white", 2.0),))


@pytest.mark.parametrize(("independent", "ladder"), [(0.8, 0.3), (-0.1, 0.3), (0.1, -0.3)])
def test_shares_of_noise_that_would_be_cut_are_refused(independent: float, ladder: float) -> None:
    with pytest.raises(BadInput, match="at most 1"):
        NoiseMix(independent=independent, ladder=ladder)
