"""C1 over time: what the model gives now against its goldens."""

from __future__ import annotations

from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.goldens import differences, make_goldens, read_goldens
from ostinato.parity.subject import Subject

NAME = "goldens"


def goldens(subject: Subject) -> GateResult:
    """Hold the model against the file of its goldens.

    Raises NothingMeasured without a file, for one of other weights, or for one without a run.
    """
    path = subject.options.goldens
    if path is None:
        raise NothingMeasured("no file of goldens was given")
    kept = read_goldens(path)
    found = make_goldens(subject)
    if kept.weights_sha256 != found.weights_sha256 or len(kept.runs) != len(found.runs):
        raise NothingMeasured(
            f"{path.name} holds {len(kept.runs)} runs of weights {kept.weights_sha256[:12]}, these "
            f"are {found.weights_sha256[:12]}; make it again: ostinato verify MODEL "
            f"--write-goldens {path}"
        )
    told = list(differences(found, kept))
    exact = found.made_on == kept.made_on
    how = "bytes and statistics" if exact else "statistics, on another processor than theirs,"
    return GateResult(
        name=NAME,
        rung=Rung.C1,
        passed=not told,
        measured=2 * len(kept.runs),
        message=f"{how} of {len(kept.runs)} runs are as kept" if not told else "; ".join(told),
        detail={"bytes_compared": exact, "differences": told},
    )
