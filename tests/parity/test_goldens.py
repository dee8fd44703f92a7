"""Goldens: kept statistics and bytes, made by one command, and red when they are not met."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.card import ModelSource
from ostinato.errors import BadInput, InvalidCheckpoint
from ostinato.models.registry import open_model
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.kept import goldens as gate
from ostinato.parity.goldens import (
    Goldens,
    differences,
    make_goldens,
    read_goldens,
    weights_sha256,
    write_goldens,
)
from ostinato.parity.perturb import Perturbation
from ostinato.parity.subject import Subject, VerifyOptions

KEPT = Path(__file__).parents[1] / "goldens"
ELSEWHERE = {"processor": "another", "threads": "1", "torch": "2.13.0"}


@pytest.fixture(scope="module")
def plain(tiny_builtin_folder: Path) -> Subject:
    """The folder with the card that its goldens were made by."""
    return Subject(open_model(tiny_builtin_folder), VerifyOptions())


@pytest.fixture(scope="module")
def made(builtin: Subject) -> Goldens:
    return make_goldens(builtin)


def test_the_tiny_builtin_gives_its_goldens(plain: Subject) -> None:
    kept = read_goldens(KEPT / "tiny-builtin.json")
    assert len(kept.runs) == 3
    assert list(differences(make_goldens(plain), kept)) == []


@pytest.mark.slow
def test_the_tiny_wan_gives_its_goldens(tiny_wan_folder: Callable[..., Path]) -> None:
    kept = read_goldens(KEPT / "tiny-wan.json")
    made = make_goldens(Subject(open_model(tiny_wan_folder()), VerifyOptions()))
    assert list(differences(made, kept)) == []


def test_the_shipped_goldens_are_of_the_shipped_weights() -> None:
    """Made again by `ostinato verify builtin --write-goldens` whenever the weights are."""
    source = open_model("builtin")
    kept = read_goldens(source.folder / "goldens.json")
    assert kept.weights_sha256 == weights_sha256(Subject(source, VerifyOptions()))
    assert len(kept.runs) == 3


def test_the_gate_passes_and_bites(
    builtin_source: ModelSource, made: Goldens, tmp_path: Path
) -> None:
    path = tmp_path / "goldens.json"
    write_goldens(made, path)
    assert read_goldens(path) == made
    options = VerifyOptions(quick=True, goldens=path)
    result = gate(Subject(builtin_source, options))
    assert result.passed, result.message
    assert result.measured == 6
    assert result.detail["bytes_compared"] is True
    weight = Perturbation.parse("transformer.blocks.0.ffn.net.2.weight=1e-4")
    result = gate(Subject(builtin_source, dataclasses.replace(options, perturbation=weight)))
    assert not result.passed
    assert "latents of request 0 have other bytes" in result.message


def test_elsewhere_statistics_are_compared_and_bytes_are_not(made: Goldens) -> None:
    run = made.runs[0]
    other = dataclasses.replace(
        run, latents=dataclasses.replace(run.latents, sha256="0" * 64, mean=run.latents.mean + 1e-7)
    )
    there = dataclasses.replace(made, made_on=ELSEWHERE, runs=(other, *made.runs[1:]))
    assert list(differences(made, there)) == []
    for change, told in (
        ({"mean": run.latents.mean + 1.0}, "mean is"),
        ({"std": float("nan")}, "std is"),
        ({"samples": (9.0, *run.latents.samples[1:])}, "a sampled value is off"),
        ({"shape": (1,)}, "have shape"),
    ):
        moved = dataclasses.replace(run, latents=dataclasses.replace(run.latents, **change))  # type: ignore[arg-type]
        found = list(differences(made, dataclasses.replace(there, runs=(moved, *made.runs[1:]))))
        assert len(found) == 1
        assert told in found[0]
    asked = dataclasses.replace(run, seed=99)
    found = list(differences(made, dataclasses.replace(there, runs=(asked, *made.runs[1:]))))
    assert found == ["request 0 is another one now; make the goldens again"]


def test_goldens_of_other_weights_or_of_nothing_are_red(
    builtin: Subject, builtin_source: ModelSource, made: Goldens, tmp_path: Path
) -> None:
    for wrong in (
        dataclasses.replace(made, weights_sha256="0" * 64),
        dataclasses.replace(made, runs=()),
    ):
        path = tmp_path / "goldens.json"
        write_goldens(wrong, path)
        subject = Subject(builtin_source, VerifyOptions(quick=True, goldens=path))
        subject.alone = builtin.alone  # type: ignore[method-assign]
        with pytest.raises(NothingMeasured, match="make it again"):
            gate(subject)
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        read_goldens(tmp_path / "nonesuch.json")
    with pytest.raises(BadInput, match="cannot be written"):
        write_goldens(made, tmp_path / "no" / "folder.json")
    with pytest.raises(NothingMeasured, match="no file of goldens"):
        gate(builtin)
