"""Goldens: kept statistics and bytes, made by one command, and red when they are not met."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.card import Determinism, ModelSource
from ostinato.errors import InvalidCheckpoint, InvalidOutput
from ostinato.models.registry import FAMILIES, open_model
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.kept import goldens as gate
from ostinato.parity.goldens import (
    Goldens,
    differences,
    elsewhere,
    make_goldens,
    read_goldens,
    write_goldens,
)
from ostinato.parity.perturb import Perturbation
from ostinato.parity.sources import changed, digests
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.parity.tiny import tiny_goldens
from support.subjects import with_parity

ELSEWHERE = {"processor": "another", "threads": "1", "torch": "2.13.0", "kernels": "AVX2"}


def tiny(name: str) -> Goldens:
    """Read what comes with the package."""
    return read_goldens(tiny_goldens(next(f for f in FAMILIES if f.name == name)))


@pytest.fixture(scope="module")
def plain(tiny_builtin_folder: Path) -> Subject:
    """The folder with the card that its goldens were made by."""
    return Subject(open_model(tiny_builtin_folder), VerifyOptions())


@pytest.fixture(scope="module")
def made(builtin: Subject) -> Goldens:
    return make_goldens(builtin)


def test_the_tiny_builtin_gives_its_goldens(plain: Subject) -> None:
    kept, made = tiny("builtin"), make_goldens(plain)
    assert len(kept.runs) == 3
    assert kept.sources == made.sources
    assert list(differences(made, kept, bitwise=True)) == []


@pytest.mark.slow
def test_the_tiny_wan_gives_its_goldens(tiny_wan_folder: Callable[..., Path]) -> None:
    kept = tiny("wan")
    made = make_goldens(Subject(open_model(tiny_wan_folder()), VerifyOptions()))
    assert kept.sources == made.sources
    assert list(differences(made, kept, bitwise=True)) == []


def test_the_shipped_goldens_are_of_the_shipped_model() -> None:
    """Made again by `ostinato verify builtin --write-goldens` whenever weights or card are."""
    source = open_model("builtin")
    kept = read_goldens(source.folder / "goldens.json")
    assert changed(digests(source), kept.sources) == ()
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
    assert result.bytes_compared == 6
    assert result.message == "bytes and statistics of 3 runs are as kept"
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
    assert list(differences(made, there, bitwise=True)) == []
    for change, told in (
        ({"mean": run.latents.mean + 1.0}, "mean is"),
        ({"std": float("nan")}, "std is"),
        ({"samples": (9.0, *run.latents.samples[1:])}, "a sampled value is off"),
        ({"shape": (1,)}, "have shape"),
    ):
        moved = dataclasses.replace(run, latents=dataclasses.replace(run.latents, **change))  # type: ignore[arg-type]
        found = list(
            differences(
                made, dataclasses.replace(there, runs=(moved, *made.runs[1:])), bitwise=True
            )
        )
        assert len(found) == 1
        assert told in found[0]
    asked = dataclasses.replace(run, seed=99)
    found = list(
        differences(made, dataclasses.replace(there, runs=(asked, *made.runs[1:])), bitwise=True)
    )
    assert found == ["request 0 is another one now; make the goldens again"]


def test_what_keeps_bytes_from_being_compared_is_named(
    builtin: Subject, builtin_source: ModelSource, made: Goldens, tmp_path: Path
) -> None:
    here = made.made_on
    assert elsewhere(here, here) == ()
    for name in ("processor", "threads", "torch", "kernels"):
        told = elsewhere(here, {**here, name: "other"})
        assert told == (f"{name}: {here[name]!r} here, 'other' there",)
    path = tmp_path / "goldens.json"
    write_goldens(dataclasses.replace(made, made_on={**here, "threads": "77"}), path)
    subject = Subject(builtin_source, VerifyOptions(quick=True, goldens=path))
    subject.alone = builtin.alone  # type: ignore[method-assign]
    result = gate(subject)
    assert result.passed, result.message
    assert result.bytes_compared == 0
    assert result.message == (
        "statistics of 3 runs are as kept; their bytes were not compared, since they were made "
        f"elsewhere (threads: {here['threads']!r} here, '77' there)"
    )


def test_bytes_that_a_card_does_not_promise_are_not_compared(
    builtin: Subject, builtin_source: ModelSource, made: Goldens, tmp_path: Path
) -> None:
    source = with_parity(builtin_source, output_determinism=Determinism.TOLERANCE)
    run = made.runs[0]
    other = dataclasses.replace(run, latents=dataclasses.replace(run.latents, sha256="0" * 64))
    kept = dataclasses.replace(made, sources=digests(source), runs=(other, *made.runs[1:]))
    path = tmp_path / "goldens.json"
    write_goldens(kept, path)
    subject = Subject(source, VerifyOptions(quick=True, goldens=path))
    subject.alone = builtin.alone  # type: ignore[method-assign]
    result = gate(subject)
    assert result.passed, result.message
    assert result.bytes_compared == 0
    assert result.message.endswith("were not compared, since the card promises none")


def test_goldens_of_another_model_or_of_nothing_are_red(
    builtin: Subject, builtin_source: ModelSource, made: Goldens, tmp_path: Path
) -> None:
    other = {**made.sources, "card": "0" * 64, "codec/gone.json": "0" * 64}
    fewer = {name: sha for name, sha in made.sources.items() if name != "codec/config.json"}
    for wrong, told in (
        ({"sources": other}, "card changed, codec/gone.json is gone; make it again"),
        ({"sources": fewer}, "not of this model: codec/config.json is new; make it again"),
        ({"sources": {}}, r"is new and \d more; make it again"),
        ({"runs": ()}, "they hold no run; make it again"),
        ({"runs": made.runs[:2]}, "holds 2 runs, not 3"),
    ):
        path = tmp_path / "goldens.json"
        write_goldens(dataclasses.replace(made, **wrong), path)  # type: ignore[arg-type]
        subject = Subject(builtin_source, VerifyOptions(quick=True, goldens=path))
        subject.alone = builtin.alone  # type: ignore[method-assign]
        with pytest.raises(NothingMeasured, match=told):
            gate(subject)
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        read_goldens(tmp_path / "nonesuch.json")
    with pytest.raises(InvalidOutput, match="cannot be written"):
        write_goldens(made, tmp_path / "no" / "folder.json")
    with pytest.raises(NothingMeasured, match="no file of goldens"):
        gate(builtin)
