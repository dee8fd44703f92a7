"""A whole run at tiny size: learns, resumes to the bit, exports."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from safetensors.torch import load_file

import ostinato.training.trainer as trainer_module
from ostinato.errors import InvalidCheckpoint, RecipeMismatch
from ostinato.models.builtin.layout import PROVENANCE, load_modules
from ostinato.training import run
from ostinato.training.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from ostinato.training.config import CONFIG_FILE, OptimizerConfig, read_config
from ostinato.training.curve import exported_curve, logged_curve
from ostinato.training.export import export_weights
from ostinato.training.prepare import prepare
from ostinato.training.trainer import Trainer
from support.tiny_training import TINY


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(TINY, output_dir=tmp_path_factory.mktemp("whole"))


def test_a_resumed_run_makes_the_same_bits(whole_run: Path, tmp_path: Path) -> None:
    stopped = shutil.copytree(whole_run, tmp_path / "stopped")
    shutil.rmtree(list_checkpoints(stopped)[-1])
    assert list_checkpoints(stopped)[-1].name == "step-0000003"
    run(TINY, output_dir=stopped)
    for group in ("weights", "average", "optimizer"):
        whole = load_file(list_checkpoints(whole_run)[-1] / f"{group}.safetensors")
        resumed = load_file(list_checkpoints(stopped)[-1] / f"{group}.safetensors")
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert _losses(stopped) == _losses(whole_run)


def _losses(run_dir: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name not in ("cpu_s", "wall_s")}
        for line in lines
        if "note" not in line
    ]


def test_loss_falls_on_a_fixed_batch(whole_run: Path) -> None:
    inputs = prepare(TINY, whole_run)
    config = replace(TINY, steps=1000, optimizer=OptimizerConfig(warmup_steps=0))
    trainer = Trainer(config, inputs)
    before = float(trainer.loss_at(0)[1].detach())
    for _ in range(25):
        trainer.loss_at(0)[1].backward()
        trainer.optimizer.step(1.0)
    after = float(trainer.loss_at(0)[1].detach())
    assert after < 0.85 * before


def test_export_round_trips(whole_run: Path, tmp_path: Path) -> None:
    destination = export_weights(whole_run, tmp_path / "weights")
    modules = load_modules(destination)
    average = load_file(list_checkpoints(whole_run)[-1] / "average.safetensors")
    loaded = dict(modules.transformer.named_parameters())
    assert all(
        torch.equal(loaded[name.removeprefix("transformer.")], value.half().float())
        for name, value in average.items()
        if name.startswith("transformer.")
    )
    by_library = WanTransformer3DModel.from_pretrained(destination / "transformer")
    assert isinstance(by_library, WanTransformer3DModel)
    for name, value in by_library.named_parameters():
        assert torch.equal(value.float(), loaded[name])
    provenance = json.loads((destination / PROVENANCE).read_text())
    assert provenance["steps"] == 6
    assert provenance["command"] == "ostinato train tiny"
    assert list(exported_curve(destination)) == _logged_losses(whole_run)
    assert set(provenance["sha256"]) == {
        "codec/config.json",
        "codec/model.safetensors",
        "model_index.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
    }


def _logged_losses(run_dir: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in line.items() if name == "step" or name.startswith("val_")}
        for line in _losses(run_dir)
        if "val_wave" in line
    ]


def test_the_curve_ends_at_the_exported_step(whole_run: Path, tmp_path: Path) -> None:
    going_on = shutil.copytree(whole_run, tmp_path / "run")
    shutil.rmtree(list_checkpoints(going_on)[-1])
    destination = export_weights(going_on, tmp_path / "weights")
    assert [row["step"] for row in exported_curve(destination)] == [3]
    assert set(exported_curve(destination)[0]) == {
        "step",
        "val_first_high",
        "val_first_middle",
        "val_history_high",
        "val_wave",
    }
    (going_on / "metrics.jsonl").unlink()
    with pytest.raises(InvalidCheckpoint, match="no validation losses of step 3"):
        export_weights(going_on, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_that_stops_with_its_last_checkpoint_has_its_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(run_dir: Path, checkpoint: Checkpoint) -> None:
        save_checkpoint(run_dir, checkpoint)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "save_checkpoint", stop)
    with pytest.raises(KeyboardInterrupt):
        run(replace(TINY, steps=3), output_dir=tmp_path)
    assert [row["step"] for row in logged_curve(tmp_path, 3)] == [3]


def test_weights_without_a_curve_have_an_empty_one(tmp_path: Path) -> None:
    assert exported_curve(tmp_path) == ()
    (tmp_path / PROVENANCE).write_text("{}")
    assert exported_curve(tmp_path) == ()
    (tmp_path / PROVENANCE).write_text('{"validation": [{"step": "three"}]}')
    with pytest.raises(InvalidCheckpoint, match="validation"):
        exported_curve(tmp_path)


def test_a_missing_tensor_is_a_typed_error(whole_run: Path, tmp_path: Path) -> None:
    destination = export_weights(whole_run, tmp_path / "weights")
    os.remove(destination / "codec" / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors"):
        load_modules(destination)


def test_another_configuration_does_not_resume(whole_run: Path) -> None:
    before = (whole_run / CONFIG_FILE).read_bytes()
    with pytest.raises(RecipeMismatch, match="start in another folder"):
        run(replace(TINY, steps=7), output_dir=whole_run)
    with pytest.raises(RecipeMismatch, match="resume=True"):
        run(TINY, output_dir=whole_run, resume=False)
    assert (whole_run / CONFIG_FILE).read_bytes() == before


def test_a_configuration_of_another_version_is_not_exported(
    whole_run: Path, tmp_path: Path
) -> None:
    changed = shutil.copytree(whole_run, tmp_path / "run")
    config = json.loads((changed / CONFIG_FILE).read_text())
    config["method"]["emphasis"] = [["olive", 1.5]]
    (changed / CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(InvalidCheckpoint, match="'olive' is no attribute"):
        export_weights(changed, tmp_path / "weights")
    assert read_config(whole_run) == TINY


def test_a_folder_without_checkpoints_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="no checkpoint"):
        export_weights(tmp_path, tmp_path / "weights")
