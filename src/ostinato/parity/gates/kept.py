"""C1 over time: what the model gives now against its goldens."""

from __future__ import annotations

from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.goldens import Goldens, differences, elsewhere, make_goldens, read_goldens
from ostinato.parity.sources import changed, digests
from ostinato.parity.subject import Subject

NAME = "goldens"
_LISTED = 5


def goldens(subject: Subject) -> GateResult:
    """Hold the model against the file of its goldens, whose sources it must have.

    Raises NothingMeasured without a file, for one of another card or of other files, or for one
    without a run; InvalidCheckpoint for a file that cannot be read.
    """
    path = subject.options.goldens
    if path is None:
        raise NothingMeasured("no file of goldens was given")
    kept = read_goldens(path)
    _require_of(kept, subject, f"make it again: ostinato verify MODEL --write-goldens {path}")
    found = make_goldens(subject)
    if len(kept.runs) != len(found.runs):
        raise NothingMeasured(f"{path.name} holds {len(kept.runs)} runs, not {len(found.runs)}")
    told = list(differences(found, kept, bitwise=subject.bitwise))
    apart = elsewhere(found.made_on, kept.made_on)
    why = f"they were made elsewhere ({'; '.join(apart)})" if apart else None
    if not subject.bitwise:
        why = "the card promises none"
    outputs = 2 * len(kept.runs)  # latents and frames
    return GateResult(
        name=NAME,
        rung=Rung.C1,
        passed=not told,
        measured=outputs,
        message="; ".join(told) if told else _agreed(len(kept.runs), why),
        bytes_compared=outputs if why is None else 0,
        detail={"made_elsewhere": apart, "differences": told, "sources": len(kept.sources)},
    )


def _require_of(kept: Goldens, subject: Subject, remedy: str) -> None:
    """Raise NothingMeasured for goldens that are not of this model."""
    other = changed(digests(subject.source), kept.sources)
    if other or not kept.runs:
        more = f" and {len(other) - _LISTED} more" if len(other) > _LISTED else ""
        what = f"{', '.join(other[:_LISTED])}{more}" if other else "they hold no run"
        raise NothingMeasured(f"the goldens are not of this model: {what}; {remedy}")


def _agreed(runs: int, why_no_bytes: str | None) -> str:
    if why_no_bytes is None:
        return f"bytes and statistics of {runs} runs are as kept"
    return (
        f"statistics of {runs} runs are as kept; their bytes were not compared, since "
        f"{why_no_bytes}"
    )
