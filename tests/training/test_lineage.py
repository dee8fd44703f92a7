"""A run that starts from another one's weights: which, how, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ostinato.errors import BadInput, RecipeMismatch
from ostinato.models.builtin import world
from ostinato.models.builtin.layout import PROVENANCE, load_modules
from ostinato.training import run
from ostinato.training.checkpoint import list_checkpoints
from ostinato.training.data.clips import ClipSet, make_scenes
from ostinato.training.export import export_weights
from ostinato.training.prepare import prepare
from ostinato.training.trainer import Trainer
from support.tiny_training import TINY

CHILD = replace(TINY, name="child", parent="tiny", steps=3, seed=4)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lineage")
    return export_weights(run(TINY, output_dir=folder / "run"), folder / "weights")


def test_a_child_starts_from_the_parents_weights(parent: Path, tmp_path: Path) -> None:
    inputs = prepare(CHILD, tmp_path / "run", parent=parent)
    trainer = Trainer(CHILD, inputs)
    modules = load_modules(parent)
    trainer.start_from(modules)
    own = dict(trainer.model.transformer.named_parameters())
    for name, value in modules.transformer.named_parameters():
        assert torch.equal(own[name], value)
        assert torch.equal(trainer.average.tensors[f"transformer.{name}"], value)
    # Latents mean the same only under the same codec.
    assert torch.equal(inputs.codec.encode_weight, modules.codec.encode_weight)


def test_the_exported_child_names_its_parent(parent: Path, tmp_path: Path) -> None:
    run_dir = run(CHILD, output_dir=tmp_path / "run", parent=parent)
    written = export_weights(run_dir, tmp_path / "weights")
    provenance = json.loads((written / PROVENANCE).read_text())
    assert provenance["command"] == "ostinato train child"
    assert provenance["parent"]["command"] == "ostinato train tiny"
    before = json.loads((parent / PROVENANCE).read_text())
    assert provenance["parent"]["sha256_of_files"] == before["sha256"]
    average = load_file(list_checkpoints(run_dir)[-1] / "average.safetensors")
    start = dict(load_modules(parent).transformer.named_parameters())
    assert any(
        not torch.equal(average[f"transformer.{name}"], value) for name, value in start.items()
    )


def test_a_parent_is_asked_for_and_checked(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ostinato train tiny --export-to"):
        run(CHILD, output_dir=tmp_path / "none")
    with pytest.raises(BadInput, match="starts from nothing"):
        run(TINY, output_dir=tmp_path / "extra", parent=parent)
    with pytest.raises(RecipeMismatch, match="made by"):
        run(replace(CHILD, parent="other"), output_dir=tmp_path / "wrong", parent=parent)
    assert not list(tmp_path.iterdir())


def test_a_run_does_not_change_its_parent(parent: Path, tmp_path: Path) -> None:
    run_dir = run(CHILD, output_dir=tmp_path / "run", parent=parent)
    other = tmp_path / "other"
    other.mkdir()
    changed = {**json.loads((parent / PROVENANCE).read_text()), "seed": 99}
    (other / PROVENANCE).write_text(json.dumps(changed))
    with pytest.raises(RecipeMismatch, match="started from other weights"):
        run(CHILD, output_dir=run_dir, parent=other)


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
