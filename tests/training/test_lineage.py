"""A run that starts from another one's weights: which, how, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import ostinato.training.trainer as trainer_module
from ostinato.errors import BadInput, InvalidCheckpoint, RecipeMismatch
from ostinato.models.builtin.layout import PROVENANCE, load_modules
from ostinato.training import run
from ostinato.training.checkpoint import list_checkpoints
from ostinato.training.export import export_weights
from ostinato.training.lineage import open_parent, read_parent
from ostinato.training.prepare import prepare
from ostinato.training.trainer import Trainer
from support.tiny_training import TINY

CHILD = replace(TINY, name="child", parent="tiny", steps=3, seed=4)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lineage")
    return export_weights(run(TINY, output_dir=folder / "run"), folder / "weights")


def test_a_child_starts_from_the_parents_weights(parent: Path, tmp_path: Path) -> None:
    inputs = prepare(CHILD, tmp_path / "run", parent=open_parent(CHILD, parent))
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


def test_a_parent_whose_files_changed_is_refused(parent: Path, tmp_path: Path) -> None:
    codec = shutil.copytree(parent, tmp_path / "weights") / "codec" / "model.safetensors"
    codec.write_bytes(codec.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InvalidCheckpoint, match="changed after it was exported"):
        run(CHILD, output_dir=tmp_path / "run", parent=tmp_path / "weights")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def sibling(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the same recipe with another codec."""
    folder = shutil.copytree(parent, tmp_path_factory.mktemp("sibling") / "weights")
    file = folder / "codec" / "model.safetensors"
    save_file({name: 2 * value for name, value in load_file(file).items()}, file)
    provenance = json.loads((folder / PROVENANCE).read_text())
    provenance["sha256"]["codec/model.safetensors"] = sha256(file.read_bytes()).hexdigest()
    (folder / PROVENANCE).write_text(json.dumps(provenance))
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_does_not_change_its_parent(parent: Path, sibling: Path, tmp_path: Path) -> None:
    run_dir = run(CHILD, output_dir=tmp_path / "run", parent=parent)
    before = contents(run_dir)
    with pytest.raises(RecipeMismatch, match="parent_digest"):
        run(CHILD, output_dir=run_dir, parent=sibling)
    assert contents(run_dir) == before


@pytest.mark.parametrize("stopped_after", ["record_parent", "prepare"])
def test_a_run_that_stopped_early_does_not_change_its_parent(
    parent: Path,
    sibling: Path,
    tmp_path: Path,
    stopped_after: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Latents of one codec and weights over another's would be trained on as if they were one's."""
    done = getattr(trainer_module, stopped_after)

    def stop(*arguments: object) -> None:
        done(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, stopped_after, stop)
    with pytest.raises(KeyboardInterrupt):
        run(CHILD, output_dir=tmp_path, parent=parent)
    monkeypatch.undo()
    before = contents(tmp_path)
    with pytest.raises(RecipeMismatch):
        run(CHILD, output_dir=tmp_path, parent=sibling)
    with pytest.raises(RecipeMismatch):
        run(replace(CHILD, parent=None), output_dir=tmp_path)
    assert contents(tmp_path) == before
    run(CHILD, output_dir=tmp_path, parent=parent)


def test_latents_of_another_codec_are_not_taken(
    parent: Path, sibling: Path, tmp_path: Path
) -> None:
    one, other = (open_parent(CHILD, folder) for folder in (parent, sibling))
    prepare(CHILD, tmp_path, parent=one)
    prepare(CHILD, tmp_path, parent=one)
    for wrong in (other, None):
        with pytest.raises(RecipeMismatch, match="parent_digest"):
            prepare(CHILD, tmp_path, parent=wrong)


def test_the_same_weights_exported_again_are_the_same_parent(parent: Path, tmp_path: Path) -> None:
    """A provenance may come to say more; weights are named by their files."""
    run_dir = run(CHILD, output_dir=tmp_path / "run", parent=parent)
    again = shutil.copytree(parent, tmp_path / "weights")
    provenance = {**json.loads((again / PROVENANCE).read_text()), "python": "3.99"}
    (again / PROVENANCE).write_text(json.dumps(provenance))
    run(CHILD, output_dir=run_dir, parent=again)
    assert read_parent(run_dir) is not None
    assert read_parent(run_dir)["python"] == "3.99"  # type: ignore[index]
