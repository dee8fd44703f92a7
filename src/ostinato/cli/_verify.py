"""`ostinato verify`: run the gates that a card owes, or measure what they allow for."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ostinato.card import ModelSource
from ostinato.cli._arguments import Verify
from ostinato.cli._eval import report_result
from ostinato.cli._models import table
from ostinato.cli._progress import Display, Reading, hide_library_bars, progress_display
from ostinato.cli._result import CommandResult
from ostinato.errors import BadInput
from ostinato.models.registry import families, open_model, ships
from ostinato.parity import Perturbation, Verification, VerifyOptions, report_of, verify
from ostinato.parity.goldens import make_goldens, write_goldens
from ostinato.parity.page import write_page
from ostinato.parity.precision import (
    markdown,
    measure_errors,
    require_markers,
    write_between_markers,
)
from ostinato.parity.sources import GOLDENS
from ostinato.parity.subject import Subject
from ostinato.parity.tiny import verify_families
from ostinato.parity.written import require_writable


def verify_model(arguments: Verify) -> CommandResult:
    """Do what was asked for.

    Raises BadInput for flags that do not go together, InvalidOutput for a path that cannot be
    written; both before any work.
    """
    _require_one_task(arguments)
    _require_measured(arguments)
    _require_places(arguments)
    hide_library_bars()
    if arguments.errors:
        return _errors(arguments)
    if arguments.write_goldens is not None:
        return _goldens(arguments, arguments.write_goldens)
    with progress_display(quiet=arguments.quiet) as display:
        verifications = _verified(arguments, display)
    report = report_of(verifications)
    if arguments.html is not None:
        write_page(verifications, report, arguments.html)
    summed = report_result(report)
    text = "\n\n".join((*map(_gates, verifications), summed.text))
    return CommandResult(text=text, document=summed.document, exit_code=summed.exit_code)


def _require_one_task(arguments: Verify) -> None:
    if (arguments.model is None) != arguments.all_tiny:
        raise BadInput("verify takes either a MODEL or --all-tiny")
    tasks = {
        "--errors": arguments.errors,
        "--write-goldens": arguments.write_goldens is not None,
        "--all-tiny": arguments.all_tiny,
    }
    asked = [name for name, given in tasks.items() if given]
    if len(asked) > 1:
        raise BadInput(f"{' and '.join(asked)} do not go together; ask for one of them")
    if arguments.write_docs is not None and not arguments.errors:
        raise BadInput("--write-docs writes the table of --errors; ask for both")
    if arguments.dtype != "float32" and not arguments.errors:
        raise BadInput("--dtype is what --errors measures; the gates run in the card's precision")
    gates = [
        name
        for name, given in (("--perturb", arguments.perturb), ("--html", arguments.html))
        if given is not None
    ]
    if gates and (arguments.errors or arguments.write_goldens is not None):
        raise BadInput(f"{' and '.join(gates)} speak of the gates, which {asked[0]} does not run")
    if arguments.perturb is not None and arguments.all_tiny:
        raise BadInput("--perturb names a weight of one MODEL, not of every family")


def _require_measured(arguments: Verify) -> None:
    """Refuse a reference: it is what others are measured by, and nothing measures it in turn."""
    for family in families():
        if family.measures is not None and family.builtin == arguments.model:
            raise BadInput(
                f"{arguments.model!r} is the float64 reference of family {family.measures!r}, and "
                f"the gates of that family hold the two against one another; verify a model of "
                f"{family.measures!r} instead"
            )


def _require_places(arguments: Verify) -> None:
    for path in (arguments.html, arguments.write_goldens):
        if path is not None:
            require_writable(path)
    if arguments.write_docs is not None:
        require_markers(arguments.write_docs, _marker(arguments))


def _marker(arguments: Verify) -> str:
    return f"errors {arguments.model} {arguments.dtype}"


def _verified(arguments: Verify, display: Display) -> Sequence[Verification]:
    def on_gate(name: str, done: int, total: int) -> None:
        display.show(Reading(step=done + 1, total=total, unit=f"gate {name}"))

    if arguments.model is None:
        options = VerifyOptions(quick=arguments.quick)
        with tempfile.TemporaryDirectory(prefix="ostinato-verify-") as root:
            return verify_families(families(), Path(root), options, on_gate)
    source = open_model(arguments.model)
    perturb = arguments.perturb
    options = VerifyOptions(
        quick=arguments.quick,
        perturbation=None if perturb is None else Perturbation.parse(perturb),
        goldens=_goldens_of(arguments.model, source),
    )
    return (verify(source, options, on_gate),)


def _goldens_of(reference: str, source: ModelSource) -> Path | None:
    """Return the goldens that a model owes: one that ships, and one whose folder has them."""
    path = source.folder / GOLDENS
    return path if ships(reference) or path.is_file() else None


def _errors(arguments: Verify) -> CommandResult:
    assert arguments.model is not None, "checked with the flags"
    subject = Subject(open_model(arguments.model), VerifyOptions())
    rows = measure_errors(subject, arguments.dtype)
    text = markdown(rows, arguments.model, arguments.dtype)
    if arguments.write_docs is not None:
        write_between_markers(arguments.write_docs, _marker(arguments), text)
    document = {"model": arguments.model, "dtype": arguments.dtype, "errors": rows}
    return CommandResult(text=text.rstrip(), document=document)


def _goldens(arguments: Verify, path: Path) -> CommandResult:
    assert arguments.model is not None, "checked with the flags"
    goldens = make_goldens(Subject(open_model(arguments.model), VerifyOptions()))
    write_goldens(goldens, path)
    document = msgspec.Raw(path.read_bytes().strip())
    return CommandResult(text=f"{path}: goldens of {len(goldens.runs)} runs", document=document)


def _gates(verification: Verification) -> str:
    rows = [(verification.model_id, "GATE", "", "MEASURED", "TAPS", "")]
    rows += [
        (
            gate.rung.value,
            gate.name,
            "passed" if gate.passed else "FAILED",
            str(gate.measured),
            str(gate.taps) if gate.taps else "",
            gate.message,
        )
        for gate in verification.gates
    ]
    return "\n".join((*verification.told, table(rows)))
