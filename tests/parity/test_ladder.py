"""The ladder runs what a card owes, and nothing that failed to measure counts as passed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ostinato.card import ModelSource, ParityLevel
from ostinato.errors import BadInput
from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.ladder import OwedGate, Verification, owed_gates, report_of, run_gate, verify
from ostinato.parity.page import render_page
from ostinato.parity.perturb import Perturbation
from ostinato.parity.subject import Subject, VerifyOptions
from support.subjects import with_parity

ALWAYS = ["files", "weights", "determinism", "interleave", "batch", "fast"]


def names(source: ModelSource, options: VerifyOptions | None = None) -> list[str]:
    return [gate.name for gate in owed_gates(source.card, options or VerifyOptions())]


def test_what_is_owed_follows_from_the_card(
    builtin_source: ModelSource, wan_source: ModelSource
) -> None:
    middle = ["components", "reload", "sampling", "trajectory", "reentry"]
    assert names(builtin_source) == [*ALWAYS[:2], *middle, *ALWAYS[2:]]
    middle[3] = "oracle"
    assert names(wan_source) == [*ALWAYS[:2], *middle, *ALWAYS[2:]]
    kept = VerifyOptions(goldens=Path("goldens.json"))
    assert names(builtin_source, kept)[7] == "goldens"
    few = with_parity(builtin_source, levels=(ParityLevel.C2,))
    assert names(few) == [*ALWAYS[:2], "reentry", *ALWAYS[2:]]


def gate(result: GateResult) -> OwedGate:
    return OwedGate(name=result.name, rung=result.rung, run=lambda subject: result)


SOUND = GateResult(name="files", rung=Rung.FILES, passed=True, measured=3, message="sound")


def test_a_gate_that_measured_nothing_or_raised_is_red(builtin: Subject) -> None:
    assert run_gate(gate(SOUND), builtin) == SOUND
    empty = run_gate(gate(dataclasses.replace(SOUND, measured=0)), builtin)
    assert not empty.passed
    assert "without measuring anything" in empty.message

    def broken(subject: Subject) -> GateResult:
        raise ZeroDivisionError("no divisor")

    raised = run_gate(OwedGate(name="weights", rung=Rung.FILES, run=broken), builtin)
    assert not raised.passed
    assert raised.message == "[ZeroDivisionError] no divisor"


def test_a_rung_that_nothing_measures_is_red(builtin_source: ModelSource) -> None:
    source = with_parity(builtin_source, levels=(ParityLevel.C3,))
    owed = owed_gates(source.card, VerifyOptions())
    unknown = next(gate for gate in owed if gate.rung is Rung.C3)
    result = run_gate(unknown, Subject(source, VerifyOptions()))
    assert not result.passed
    assert "declares C3, and no gate here measures" in result.message
    assert "nothing_measured" in result.message
    assert issubclass(NothingMeasured, Exception)


def test_figures_sum_the_gates_up_and_zero_of_anything_fails() -> None:
    seen = dataclasses.replace(
        SOUND,
        taps=5,
        variants=2,
        variants_equal=2,
        bytes_compared=4,
        worst_relative_error=1e-6,
    )
    sound = Verification(model_id="m", card_digest="sha256:0", gates=(SOUND, seen), threads=1)
    report = report_of([sound])
    assert report.passed
    assert sound.passed
    assert report.figures == {
        "models": 1,
        "gates": 2,
        "gates_passed": 2,
        "taps": 5,
        "comparisons": 6,
        "variants": 2,
        "variants_bit_equal": 2,
        "variants_within_tolerance": 0,
        "golden_bytes_compared": 4,
        "worst_relative_error": 1e-6,
    }
    document = json.loads(report.to_json())
    assert document["name"] == "verify"
    assert document["detail"]["m"]["gates"]["files"]["rung"] == "files"
    for wrong in (
        dataclasses.replace(seen, taps=0),
        dataclasses.replace(seen, variants_equal=1),
        dataclasses.replace(seen, variants=0, variants_equal=0),
        dataclasses.replace(seen, passed=False),
    ):
        assert not report_of([dataclasses.replace(sound, gates=(SOUND, wrong))]).passed
    assert not report_of([]).passed
    nothing = dataclasses.replace(sound, gates=())
    assert not nothing.passed
    assert not report_of([nothing]).passed


def test_a_moved_weight_is_told_everywhere_and_has_to_be_seen() -> None:
    seen = dataclasses.replace(SOUND, taps=5, variants=2, variants_equal=2)
    blind = Verification(
        model_id="m",
        card_digest="sha256:0",
        gates=(SOUND, seen),
        threads=1,
        perturbation="codec.bias[0]=0.001",
    )
    report = report_of([blind])
    assert not blind.passed
    assert not report.passed
    assert not report.meets("perturbations_seen")
    assert json.loads(report.to_json())["detail"]["m"]["perturbation"] == "codec.bias[0]=0.001"
    told = "one weight of the served side was moved: codec.bias[0]=0.001"
    assert f"{told}; no gate saw it" in render_page([blind], report)
    red = dataclasses.replace(SOUND, passed=False)
    caught = dataclasses.replace(blind, gates=(red, seen))
    report = report_of([caught])
    assert not report.passed
    assert report.meets("perturbations_seen")
    assert f"{told}</p>" in render_page([caught], report)


def test_threads_are_told_for_each_model() -> None:
    seen = dataclasses.replace(SOUND, taps=5, variants=2, variants_equal=2)
    one, two = (
        Verification(model_id=name, card_digest="", gates=(SOUND, seen), threads=threads)
        for name, threads in (("small", 1), ("large", 4))
    )
    report = report_of([one, two])
    assert report.environment["threads"] == "1 (small), 4 (large)"
    assert [report.detail[name]["threads"] for name in ("small", "large")] == [1, 4]  # type: ignore[index]
    assert report_of([two]).environment["threads"] == "4"


def test_within_tolerance_counts_only_where_it_was_promised() -> None:
    within = dataclasses.replace(SOUND, taps=5, variants=3, variants_equal=1, variants_tolerated=2)
    found = Verification(model_id="m", card_digest="", gates=(within,), threads=1)
    report = report_of([found])
    assert report.passed
    assert report.figures["variants_bit_equal"] == 1
    assert report.figures["variants_within_tolerance"] == 2
    beyond = dataclasses.replace(within, variants_tolerated=1)
    assert not report_of([dataclasses.replace(found, gates=(beyond,))]).passed


def test_an_empty_prompt_set_is_red_throughout(builtin_source: ModelSource) -> None:
    found = verify(builtin_source, VerifyOptions(prompts=()))
    passed = {gate.name for gate in found.gates if gate.passed}
    assert passed == {"files", "weights", "sampling"}
    assert not report_of([found]).passed


def test_a_perturbation_that_names_nothing_is_refused_at_once(builtin_source: ModelSource) -> None:
    seen: list[str] = []
    options = VerifyOptions(perturbation=Perturbation.parse("codec.nonesuch"))
    with pytest.raises(BadInput, match="no parameter 'nonesuch'"):
        verify(builtin_source, options, lambda name, done, total: seen.append(name))
    assert seen == []
