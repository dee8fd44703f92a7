"""Scenes: the two splits, what is drawn, and when."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from ostinato.errors import InvalidRequest
from ostinato.models.builtin.world import (
    Background,
    Colour,
    Motion,
    Shape,
    Split,
    is_held_out,
    sample_scene,
)
from ostinato.models.builtin.world.scene import HELD_OUT_PAIRS, RADIUS_RANGE, SPEED_RANGE


def test_held_out_share_and_coverage_of_training() -> None:
    every = list(itertools.product(Shape, Colour, Motion, Background))
    training = [combination for combination in every if not is_held_out(*combination)]
    assert 0.10 <= 1 - len(training) / len(every) <= 0.22
    for position, kind in enumerate((Shape, Colour, Motion, Background)):
        assert {combination[position] for combination in training} == set(kind)
    pairs = {(shape, colour) for shape, colour, _, _ in training}
    assert set(itertools.product(Shape, Colour)) - pairs == HELD_OUT_PAIRS
    # Every other pair of attributes is seen.
    for first, second in itertools.combinations(range(4), 2):
        if (first, second) != (0, 1):
            kinds = ((Shape, Colour, Motion, Background)[at] for at in (first, second))
            seen = {(combination[first], combination[second]) for combination in training}
            assert seen == set(itertools.product(*kinds))


def test_held_out_set_never_changes() -> None:
    held_out = [
        each for each in itertools.product(Shape, Colour, Motion, Background) if is_held_out(*each)
    ]
    assert len(held_out) == 362
    assert is_held_out(Shape.RING, Colour.ORANGE, Motion.LEFT, Background.BLACK)


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("num_objects", [1, 2])
def test_samples_belong_to_their_split(split: Split, num_objects: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        scene = sample_scene(rng, split=split, num_objects=num_objects)
        assert len({spec.shape for spec in scene.objects}) == num_objects
        assert len({spec.colour for spec in scene.objects}) == num_objects
        for spec in scene.objects:
            held_out = is_held_out(spec.shape, spec.colour, spec.motion, scene.background)
            assert held_out == (split is Split.HELD_OUT)
            assert RADIUS_RANGE[0] <= spec.radius <= RADIUS_RANGE[1]
            if spec.motion not in (Motion.BOUNCING, Motion.STILL):
                speed = np.hypot(*spec.velocity)
                assert SPEED_RANGE[0] <= speed <= SPEED_RANGE[1]


def test_sampling_depends_on_the_seed_alone() -> None:
    script = (
        "import numpy as np; from ostinato.models.builtin.world import sample_scene;"
        "print(sample_scene(np.random.default_rng(5)))"
    )
    command = [sys.executable, "-c", script]
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert again == str(sample_scene(np.random.default_rng(5)))
    assert again != str(sample_scene(np.random.default_rng(6)))


@pytest.mark.parametrize("num_objects", [0, 3])
def test_number_of_objects_is_checked(num_objects: int) -> None:
    with pytest.raises(InvalidRequest, match=f"num_objects={num_objects}"):
        sample_scene(np.random.default_rng(0), num_objects=num_objects)
