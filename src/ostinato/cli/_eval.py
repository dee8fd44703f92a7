"""`ostinato eval`: run a suite of the card and print its figures against their targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from ostinato.api import Model, load
from ostinato.backend.importing import load_object
from ostinato.cli._arguments import Eval
from ostinato.cli._models import table
from ostinato.cli._progress import Reading, hide_library_bars, progress_display
from ostinato.cli._result import CommandResult
from ostinato.errors import BadInput
from ostinato.report import Report
from ostinato.runtime.threads import kernel_threads


class Suite(Protocol):
    """Measure a served model; `on_progress(done, total)` is called after each clip."""

    def __call__(
        self,
        model: Model,
        num_prompts: int,
        threads: int,
        on_progress: Callable[[int, int], None],
    ) -> Report: ...


def evaluate(arguments: Eval) -> CommandResult:
    """Run one suite on one model; raises BadInput for a suite that the card does not name."""
    with load(arguments.model) as model:
        suites = model.card.suites
        if arguments.suite not in suites:
            raise BadInput(
                f"--suite is {arguments.suite!r}; the suites of {model.card.model_id!r}: "
                f"{', '.join(suites) or 'none'}"
            )
        hide_library_bars()
        suite = cast("Suite", load_object(suites[arguments.suite]))
        with progress_display(quiet=arguments.quiet) as display:
            report = suite(
                model,
                arguments.prompts,
                kernel_threads(model.card),
                lambda done, total: display.show(Reading(step=done, total=total, unit="clip")),
            )
    return report_result(report)


def report_result(report: Report) -> CommandResult:
    """Print figures for people, and the report's own JSON line for programs; fail when it did."""
    rows = [("FIGURE", "VALUE", "TARGET", "")]
    for figure in (*report.figures, *(t for t in report.targets if t not in report.figures)):
        value = report.figures.get(figure)
        shown = "not measured" if value is None else f"{value:.6g}"
        comparison, bound = report.targets.get(figure, ("", ""))
        verdict = "" if not comparison else "met" if report.meets(figure) else "MISSED"
        rows.append((figure, shown, f"{comparison} {bound}".strip(), verdict))
    return CommandResult(
        text=f"{table(rows)}\n{report.name}: {'passed' if report.passed else 'FAILED'}",
        document=msgspec.Raw(report.to_json().encode()),
        exit_code=0 if report.passed else 1,
    )
