"""`ostinato doctor`: what this machine is, what it needs for exact batches, what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ostinato.backend.batch_rules import (
    NEVER,
    BatchRules,
    Finding,
    probe_batch_rules,
    probe_thoroughly,
)
from ostinato.card import ModelSource
from ostinato.cli._arguments import Doctor
from ostinato.cli._eval import report_result
from ostinato.cli._exactness import Setting, family_line, findings_table, rule_lines
from ostinato.cli._machine import Check, machine_checks, machine_facts
from ostinato.cli._models import table
from ostinato.cli._progress import Display, Reading, progress_display
from ostinato.cli._result import CommandResult
from ostinato.errors import OstinatoError
from ostinato.models.registry import families, open_model
from ostinato.report import Comparison, Report, describe_environment
from ostinato.runtime.threads import cpu_turn, kernel_threads

_DTYPES = (torch.float32, torch.bfloat16)


class _Served(NamedTuple):
    """A family, its shipped model if it has one, and the threads that its kernels get."""

    name: str
    source: ModelSource | None
    threads: int


class _Exact(NamedTuple):
    """What exact execution of a family comes to here, at so many threads."""

    name: str
    threads: int
    told: str


def diagnose(arguments: Doctor) -> CommandResult:
    """Look at the machine; exit 1 when something is broken that a command needs."""
    served = _served()
    own_threads = kernel_threads()
    counts = sorted({own_threads, *(family.threads for family in served)})
    if not arguments.quick:
        counts = sorted({1, *counts})
    with progress_display(quiet=arguments.quick) as display:
        rules = {threads: _probe(threads) for threads in counts}
        findings = {} if arguments.quick else _thorough(counts, display)
    checks = (*machine_checks(), *(_repeats(threads, rules[threads]) for threads in counts))
    exact = [
        _Exact(family.name, family.threads, family_line(family.source, rules[family.threads]))
        for family in served
    ]
    report = _report(own_threads, rules, findings, checks, exact)
    result = report_result(report)
    text = "\n\n".join((*_sections(rules, findings, checks, exact), result.text))
    return CommandResult(text=text, document=result.document, exit_code=result.exit_code)


def _served() -> tuple[_Served, ...]:
    found: list[_Served] = []
    for family in families():
        try:
            source = open_model(family.builtin) if family.builtin is not None else None
        except OstinatoError:  # told by the check of its weights
            source = None
        threads = kernel_threads(None if source is None else source.card)
        found.append(_Served(family.name, source, threads))
    return tuple(found)


def _probe(threads: int) -> BatchRules:
    with cpu_turn(threads):
        return probe_batch_rules()


def _repeats(threads: int, rules: BatchRules) -> Check:
    """Probe once more: verdicts that change from call to call would mean bits that do."""
    name = f"kernels repeat their bits, {threads} thread{'' if threads == 1 else 's'}"
    again = _probe(threads)
    if again == rules:
        return Check(name, True, True, "two probes agree")
    return Check(name, False, True, f"two probes disagree: {rules}, then {again}")


def _thorough(counts: Sequence[int], display: Display) -> dict[Setting, tuple[Finding, ...]]:
    settings = [Setting(dtype, threads) for dtype in _DTYPES for threads in counts]
    found: dict[Setting, tuple[Finding, ...]] = {}
    for done, setting in enumerate(settings, start=1):
        with cpu_turn(setting.threads):
            found[setting] = probe_thoroughly(setting.dtype)
        display.show(Reading(step=done, total=len(settings), unit="probe"))
    return found


def _report(
    own_threads: int,
    rules: Mapping[int, BatchRules],
    findings: Mapping[Setting, Sequence[Finding]],
    checks: Sequence[Check],
    exact: Sequence[_Exact],
) -> Report:
    needed = [check for check in checks if check.needed]
    figures = {
        "checks": float(len(needed)),
        "checks_passed": float(sum(check.passed for check in needed)),
        **_rule_figures(rules[own_threads], ""),
    }
    for threads, found in rules.items():
        figures |= _rule_figures(found, f"_t{threads}")
    return Report(
        name="doctor",
        figures=figures,
        targets={"checks_passed": (Comparison.AT_LEAST, figures["checks"])},
        environment=describe_environment(own_threads),
        detail={
            "machine": dict(machine_facts()),
            "checks": [check._asdict() for check in checks],
            "exact": {family.name: family.told for family in exact},
            "findings": [
                {"setting": setting.describe(), "finding": finding}
                for setting, found in findings.items()
                for finding in found
            ],
        },
    )


def _rule_figures(rules: BatchRules, suffix: str) -> dict[str, float]:
    """Return the verdicts as numbers; a count that does not exist has no figure."""
    counts = {
        "linear_rows": rules.linear_rows,
        "activation_multiple": rules.activation_multiple,
        "attention_stacks": rules.attention,
        "norms_stack": rules.norms,
    }
    return {f"{name}{suffix}": float(n) for name, n in counts.items() if n != NEVER}


def _sections(
    rules: Mapping[int, BatchRules],
    findings: Mapping[Setting, Sequence[Finding]],
    checks: Sequence[Check],
    exact: Sequence[_Exact],
) -> list[str]:
    heads = [("float32", *(f"{n} thread{'' if n == 1 else 's'}" for n in rules))]
    lines = zip(*(rule_lines(found) for found in rules.values()), strict=True)
    needs = [(line[0][0], *(told for _, told in line)) for line in lines]
    families = [(family.name, f"t{family.threads}", family.told) for family in exact]
    sections = [
        f"This machine\n{table(machine_facts())}",
        f"What it needs for a stack to have the bits of its requests\n{table([*heads, *needs])}",
        f"So concurrent requests run, on an engine with max_batch above 1\n{table(families)}",
    ]
    if findings:
        sections.append(table(findings_table(findings)))
    told = [(check.name, _verdict(check), check.told) for check in checks]
    return [*sections, f"What commands need\n{table(told)}"]


def _verdict(check: Check) -> str:
    return "ok" if check.passed else "BROKEN" if check.needed else "missing"
