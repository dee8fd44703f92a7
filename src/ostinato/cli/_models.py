"""`ostinato models`: what there is."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.cli._result import CommandResult
from ostinato.models.registry import Family, families


def list_models() -> CommandResult:
    """List families and the models that ship with them."""
    known = families()
    rows = [("FAMILY", "MODEL", "SERVES")]
    rows += [(family.name, _opens(family), family.summary) for family in known]
    document = [
        {
            "family": family.name,
            "builtin": family.builtin,
            "pipelines": family.pipelines,
            "summary": family.summary,
        }
        for family in known
    ]
    return CommandResult(text=table(rows), document={"families": document})


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns by padding all but the last."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _opens(family: Family) -> str:
    if family.builtin is not None:
        return family.builtin
    return f"folder or hub id of a {' or '.join(family.pipelines)}"
