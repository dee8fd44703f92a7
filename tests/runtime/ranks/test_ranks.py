"""Two processes execute one stream of decisions, and make the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ostinato.api import Engine
from ostinato.models.registry import open_model
from support.faults import WAIT_S
from support.ranks import CANCELLED, FAILING, asked, outcome, start


@pytest.mark.multirank
def test_two_ranks_make_what_one_alone_makes(
    tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """One request fails in a call and one is cancelled in the middle of a call, on both alike."""
    folders = [tiny_builtin_folder, tiny_wan_folder("UniPCMultistepScheduler")]
    with Engine() as engine:
        ids = [engine.add(open_model(folder)).card.model_id for folder in folders]
        first = asked(*ids, np.zeros(1, np.float32))[4]
        shape = engine.submit(first).result(WAIT_S).latents.shape
        latents = np.random.default_rng(0).standard_normal(tuple(shape), np.float32)
        requests = asked(*ids, latents)
        sound = [request for request in requests if request.seed not in (FAILING, CANCELLED)]
        alone = {request.seed: outcome(engine.submit(request)) for request in sound}
    ranks = [start(rank, tmp_path, folders, latents) for rank in (0, 1)]
    for process in ranks:
        process.join(3 * WAIT_S)
    assert [process.exitcode for process in ranks] == [0, 0]
    expected = {f"{seed}/{name}": v for seed, made in alone.items() for name, v in made.items()}
    expected[f"{FAILING}/code"] = np.array("internal")
    expected[f"{CANCELLED}/code"] = np.array("cancelled")
    for rank in (0, 1):
        found = np.load(tmp_path / f"{rank}.npz")
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"rank {rank}: {name}")
