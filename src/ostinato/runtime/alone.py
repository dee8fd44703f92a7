"""Units that a request runs between decisions while nobody else is there."""

from __future__ import annotations

from ostinato.runtime.pricing import Priced, Pricing
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.turns import Ran, Turns

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
        self._stacked = False

    def decided(self, *, stacked: bool) -> None:
        """Note how the unit of the last decision ran: those that follow run likewise."""
        self._stacked = stacked

    def may_go_on(self, priced: Priced) -> bool:
        """Whether another unit may run undecided; priced: the last that was priced."""
        if len(self._ran) >= UNDECIDED:
            return False
        return self._pricing.well_known(priced, stacked=self._stacked)

    def go_on(self, running: RunningRequest) -> Ran:
        """Run one more unit."""
        ran = self._turns.run([running], stacked=self._stacked)
        self._ran.append(ran)
        return ran

    def take(self) -> list[Ran]:
        """Return what ran since the last decision, to be charged once."""
        ran, self._ran = self._ran, []
        return ran
