"""Opening a model: everything that cannot be served is refused with a reason, unloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.errors import InvalidCheckpoint, UnknownModel
from ostinato.models.builtin.card import open_builtin
from ostinato.models.registry import FAMILIES, families, open_model


@pytest.fixture
def copy(tiny_builtin_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_builtin_folder, tmp_path / "builtin"))


def test_families_have_unique_names_and_pipelines() -> None:
    names = [family.name for family in families()]
    pipelines = [pipeline for family in FAMILIES for pipeline in family.pipelines]
    assert len(set(names)) == len(names)
    assert len(set(pipelines)) == len(pipelines)


def test_the_shipped_model_opens_by_name_and_its_files_are_verified() -> None:
    source = open_model("builtin")
    assert source.card.model_id == "builtin"
    assert len(source.card.files) >= 6
    assert "ostinato train builtin-rings" in source.card.provenance
    assert "None" not in source.card.provenance
    size = sum(path.stat().st_size for path in source.folder.rglob("*.safetensors"))
    assert size <= 8 * 2**20


def test_an_exported_folder_opens_under_its_own_name(tiny_builtin_folder: Path) -> None:
    source = open_model(tiny_builtin_folder)
    assert (source.card.family, source.card.model_id) == ("builtin", tiny_builtin_folder.name)


def test_a_wan_folder_opens_by_its_pipeline(tiny_wan_folder: Callable[[str], Path]) -> None:
    source = open_model(tiny_wan_folder("UniPCMultistepScheduler"))
    assert source.card.family == "wan"


def test_a_changed_file_fails_its_digest(copy: Path) -> None:
    weights = copy / "codec" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(InvalidCheckpoint, match=r"codec/model.safetensors has sha256"):
        open_builtin(copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"tokenizer.json is missing"):
        open_builtin(copy)


def test_a_folder_without_digests_is_refused(copy: Path) -> None:
    (copy / "provenance.json").write_text(json.dumps({"seed": 1}))
    with pytest.raises(InvalidCheckpoint, match="no file digests"):
        open_builtin(copy)


@pytest.mark.parametrize(
    "reference", ["nonesuch", "/no/such/folder", "./missing", "a/b/c", "~nosuchuser"]
)
def test_an_unknown_reference_says_what_would_do(reference: str) -> None:
    with pytest.raises(UnknownModel, match="built-in"):
        open_model(reference)


def test_a_folder_without_model_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"model_index.json is missing"):
        open_model(tmp_path)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(InvalidCheckpoint, match="is a file"):
        open_model(path)


def test_a_pipeline_of_no_family_is_named(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "SomePipeline"}')
    with pytest.raises(UnknownModel, match=r"'SomePipeline'; served .* OstinatoBuiltin, WanP"):
        open_model(tmp_path)


def test_a_hub_that_does_not_deliver_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnknownModel, match="hub did not deliver"):
        open_model("no-such-owner/no-such-model")
