"""C0, reload: what is served computes what its files say, to the bit.

Float64 cannot see a change whose effect is below the rounding of float32 - a query that is one of
many alike - but the same code over weights read again can: every tap must have the same bits.
"""

from __future__ import annotations

from ostinato.parity.aligner import replay
from ostinato.parity.compare import compare_promised
from ostinato.parity.gate import GateResult, NothingMeasured, Rung, Tally
from ostinato.parity.subject import Subject
from ostinato.runtime import ResidentModel

NAME = "reload"


def reload(subject: Subject) -> GateResult:
    """Replay what was recorded through components loaded anew, with nothing moved in them.

    By bits, where the card promises them. Raises NothingMeasured when no tap was recorded.
    """
    recorded, tally = subject.recorded, Tally()
    if recorded.num_taps == 0:
        raise NothingMeasured("no value was seen inside any component")
    fresh = ResidentModel(subject.source)
    with subject.cpu():
        again = replay(recorded.calls, fresh.component)
        for found, expected in zip(recorded.calls, again, strict=True):
            tally.add(compare_promised(found, expected, bitwise=subject.bitwise))
    agree = "have the bits" if subject.bitwise else "are within tolerance"
    return tally.result(
        NAME, Rung.C0, f"{tally.measured} values {agree} of components that were loaded again"
    )
