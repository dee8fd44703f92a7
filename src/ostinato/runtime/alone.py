"""Units that a request runs between decisions while nobody else is there."""

from __future__ import annotations

from ostinato.runtime.priced import Priced, Shape
from ostinato.runtime.pricing import Pricing
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.turns import Ran, Turns
from ostinato.tasks import RequestId

# After each decision: there is nobody to decide about, so deciding and pricing, which take a few
# tenths of a millisecond, can wait.
UNDECIDED = 3


class Alone:
    """What ran since the last decision, and is not charged yet; on the device worker only."""

    def __init__(self, pricing: Pricing, turns: Turns) -> None:
        """Take the desk's own."""
        self._pricing = pricing
        self._turns = turns
        self._ran: list[Ran] = []
        self._request_id: RequestId | None = None
        self._shape: Shape | None = None
        self._stacked = False

    def decided(self, running: RunningRequest, priced: Priced, *, stacked: bool) -> None:
        """Note how the unit of the last decision ran: those that follow it run likewise."""
        self._request_id = running.spec.request_id
        self._shape, self._stacked = priced.shape, stacked

    def may_go_on(self, running: RunningRequest) -> bool:
        """Whether one more unit may run undecided: it is like the one that was decided."""
        if len(self._ran) >= UNDECIDED or self._shape is None:
            return False
        if running.spec.request_id != self._request_id or running.faulty:
            return False
        try:
            shape = self._pricing.known(running.upcoming())
        except Exception:  # of a value that cannot be signed; pricing the unit meets it again
            return False
        if shape is not self._shape:
            return False
        return self._pricing.well_known(self._shape, stacked=self._stacked)

    def go_on(self, running: RunningRequest) -> Ran:
        """Run one more unit."""
        ran = self._turns.run([running], stacked=self._stacked)
        self._ran.append(ran)
        return ran

    def take(self) -> list[Ran]:
        """Return what ran since the last decision, to be charged once."""
        ran, self._ran = self._ran, []
        return ran
