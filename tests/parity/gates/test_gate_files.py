"""What lies on disk is what the card lists, and what no digest covers is said."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from ostinato.card import FileDigest, ModelSource
from ostinato.models.wan.open import open_wan
from ostinato.parity.gates.files import files
from ostinato.parity.gates.weights import weights
from ostinato.parity.sources import changed, digests
from ostinato.parity.subject import Subject, VerifyOptions


def test_files_pass_by_digest_and_by_header(builtin: Subject, wan: Subject) -> None:
    result = files(builtin)
    assert result.passed
    assert result.measured == len(builtin.card.files) >= 9
    assert result.detail == {"content_verified": True}
    result = files(wan)
    assert result.passed
    assert result.detail == {"content_verified": False}
    assert result.measured > 100


def test_content_that_nothing_here_verifies_is_said(wan_source: ModelSource) -> None:
    folder = wan_source.folder
    told = files(Subject(wan_source, VerifyOptions())).message
    assert "the card lists no digest: content is NOT verified" in told
    assert f"ostinato verify {folder} --write-goldens {folder / 'goldens.json'}" in told
    kept = files(Subject(wan_source, VerifyOptions(goldens=folder / "goldens.json"))).message
    assert "content is verified by the goldens" in kept
    assert "NOT" not in kept


def test_another_variant_beside_the_weights_is_not_looked_at(
    wan_source: ModelSource, tmp_path: Path
) -> None:
    """The library does not read it, so neither does what holds it to its files."""
    folder = Path(shutil.copytree(wan_source.folder, tmp_path / "copy"))
    before = digests(open_wan(folder))
    for name in (
        "transformer/diffusion_pytorch_model.fp16.safetensors",
        "transformer/diffusion_pytorch_model.safetensors.index.fp16.json",
        "vae/diffusion_pytorch_model.fp16.safetensors",
        "text_encoder/model.fp16.safetensors",
    ):
        (folder / name).write_bytes(b"{}")
    subject = Subject(open_wan(folder), VerifyOptions())
    result = files(subject)
    assert result.passed
    assert result.measured == files(Subject(wan_source, VerifyOptions())).measured
    assert weights(subject).passed
    assert changed(digests(subject.source), before) == ()


def test_a_file_that_changed_or_is_gone_is_named(
    builtin_source: ModelSource, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(builtin_source.folder, tmp_path / "copy"))
    config = folder / "codec" / "config.json"
    config.write_text(config.read_text() + " ")
    (folder / "tokenizer" / "tokenizer.json").unlink()
    result = files(Subject(dataclasses.replace(builtin_source, folder=folder), VerifyOptions()))
    assert not result.passed
    assert "codec/config.json has sha256" in result.message
    assert "tokenizer/tokenizer.json is missing" in result.message


def test_a_listed_file_counts(builtin_source: ModelSource) -> None:
    """A digest that was never true is as red as a file that changed."""
    wrong = (FileDigest(path="model_index.json", sha256="0" * 64),)
    card = dataclasses.replace(builtin_source.card, files=wrong)
    result = files(Subject(dataclasses.replace(builtin_source, card=card), VerifyOptions()))
    assert not result.passed
    assert result.measured == 1
