"""`ostinato verify`: exit codes, the table, the JSON line, and flags that do not go together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NoReturn

import pytest

from ostinato.cli import main
from ostinato.cli._verify import _goldens_of
from ostinato.models.registry import open_model
from ostinato.parity import ladder


def test_a_sound_model_passes(
    tiny_builtin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    folder = str(tiny_builtin_folder)
    assert main(["verify", folder, "--quick", "--quiet", "--json", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    document = json.loads(out.splitlines()[-1])
    figures = document["figures"]
    assert document["name"] == "verify"
    assert document["passed"] is True
    assert figures["gates"] == figures["gates_passed"] == 11
    assert figures["taps"] > 100
    assert figures["variants"] == figures["variants_bit_equal"] == 12
    gates = document["detail"][tiny_builtin_folder.name]["gates"]
    assert gates["batch"]["stock_batch_equal"] is False
    assert "verify: passed" in out
    assert "ostinato verify" in page.read_text()


def test_a_moved_weight_fails_and_the_first_tap_is_named(
    tiny_builtin_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gates of serving pass a model that is wrong in every run alike; they are left out."""
    every = ladder.owed_gates
    monkeypatch.setattr(ladder, "owed_gates", lambda *given: every(*given)[:4])
    weight = "transformer.blocks.0.ffn.net.2.bias"
    arguments = ["verify", str(tiny_builtin_folder), "--perturb", weight, "--quick", "--quiet"]
    assert main([*arguments, "--json"]) == 1
    out = capsys.readouterr().out
    assert f"one weight of the served side was moved: {weight}[0]=0.001\n" in out
    document = json.loads(out.splitlines()[-1])
    assert document["detail"][tiny_builtin_folder.name]["perturbation"] == f"{weight}[0]=0.001"
    assert document["figures"]["perturbations_seen"] == 1
    assert "first divergence: tap 'blocks.0.ffn' (occurrence 0) of transformer." in out
    assert f"{weight} differs from its file by up to 0.001" in out
    assert "verify: FAILED" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either a MODEL or --all-tiny"),
        (["builtin", "--all-tiny"], "either a MODEL or --all-tiny"),
        (["builtin", "--errors", "--write-goldens", "x"], "do not go together"),
        (["builtin", "--write-docs", "x"], "ask for both"),
        (["builtin", "--dtype", "bfloat16"], "--dtype is what --errors measures"),
        (["builtin", "--errors", "--dtype", "int8"], "dtype is 'int8'"),
        (["builtin", "--errors", "--perturb", "codec.bias"], "speak of the gates"),
        (["--all-tiny", "--perturb", "codec.bias"], "one MODEL"),
        (["builtin", "--perturb", "codec"], "names no weight"),
        (["nonesuch"], "no model 'nonesuch'"),
        (["builtin-reference"], "is the float64 reference of family 'builtin'"),
        (["builtin-reference", "--errors"], "is the float64 reference of family 'builtin'"),
    ],
)
def test_bad_usage_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["builtin", "--html"],
        ["--all-tiny", "--html"],
        ["builtin", "--write-goldens"],
        ["builtin", "--errors", "--write-docs"],
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(*given: object) -> NoReturn:
        raise AssertionError("work began")

    for name in ("open_model", "verify_families"):
        monkeypatch.setattr(f"ostinato.cli._verify.{name}", work)
    assert main(["verify", *arguments, str(tmp_path / "no" / "place")]) == 2
    told = capsys.readouterr().err
    assert "place' cannot be written" in told
    assert "expected a file in a folder that exists" in told


def test_a_page_with_one_marker_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.cli._verify.open_model", lambda model: pytest.fail("work began"))
    page = tmp_path / "page.md"
    page.write_text("<!-- begin errors builtin float32 -->\n")
    assert main(["verify", "builtin", "--errors", "--write-docs", str(page)]) == 2
    assert "without the other" in capsys.readouterr().err


def test_a_model_that_ships_owes_its_goldens(tiny_builtin_folder: Path, tmp_path: Path) -> None:
    shipped = open_model("builtin")
    assert _goldens_of("builtin", shipped) == shipped.folder / "goldens.json"
    bare = dataclasses.replace(shipped, folder=tmp_path)
    assert _goldens_of("builtin", bare) == tmp_path / "goldens.json"
    tiny = open_model(tiny_builtin_folder)
    assert _goldens_of(str(tiny_builtin_folder), tiny) is None


def test_errors_are_printed_and_written_into_a_page(
    tiny_builtin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "numerics.md"
    arguments = [
        "verify",
        str(tiny_builtin_folder),
        "--errors",
        "--write-docs",
        str(page),
        "--json",
    ]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "| codec | decode | `pixels` |" in out
    assert "| codec | decode | `pixels` |" in page.read_text()
    document = json.loads(out.splitlines()[-1])
    assert document["dtype"] == "float32"
    assert len(document["errors"]) > 10


def test_goldens_end_with_one_line_of_json(
    tiny_builtin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "goldens.json"
    arguments = ["verify", str(tiny_builtin_folder), "--write-goldens", str(path), "--quiet"]
    assert main([*arguments, "--json"]) == 0
    last = capsys.readouterr().out.rstrip("\n").split("\n")[-1]
    assert json.loads(last) == json.loads(path.read_text())
