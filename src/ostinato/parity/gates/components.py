"""C0, components: every call of a served request against the same call in float64."""

from __future__ import annotations

from ostinato.parity.aligner import replay
from ostinato.parity.compare import compare_call
from ostinato.parity.gate import GateResult, NothingMeasured, Rung, Tally
from ostinato.parity.subject import Subject

NAME = "components"


def components(subject: Subject) -> GateResult:
    """Replay what was recorded through the reference; the first tap out of bounds is named.

    Raises InvalidCard without a reference, NothingMeasured without a tap, or when a component of
    the card was not on the path.
    """
    reference = subject.reference_component
    recorded = subject.recorded
    silent = sorted({call.component for call in recorded.calls if not call.taps})
    if recorded.num_taps == 0 or silent:
        raise NothingMeasured(
            f"no value was seen inside {', '.join(silent) or 'any component'}; a component that "
            "is measured has `observe`"
        )
    unseen = sorted(set(subject.weighted) - {call.component for call in recorded.calls})
    if unseen:
        raise NothingMeasured(f"no call of {', '.join(unseen)} was recorded")
    tally = Tally()
    tally.taps = recorded.num_taps
    for found, expected in zip(recorded.calls, replay(recorded.calls, reference), strict=True):
        tally.add(compare_call(found, expected))
    calls = len(recorded.calls)
    return tally.result(
        NAME,
        Rung.C0,
        f"{tally.measured} values of {calls} calls, {tally.taps} of them taps, are within "
        "tolerance of float64",
    )
