"""Several witnesses at once; one that raises is let go, and the engine works on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress

from ostinato.runtime.scheduler import (
    Decision,
    Level,
    Outcome,
    Snapshot,
    UnitRecord,
    Waiting,
    Witness,
)
from ostinato.tasks import RequestId


class Bystander:
    """Sees everything and does nothing; a base for those who care for some of it."""

    def submitted(self, waiting: Waiting, model: str) -> None:
        """Do nothing."""

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        """Do nothing."""

    def executed(self, unit: UnitRecord) -> None:
        """Do nothing."""

    def ended(self, request_id: RequestId, outcome: Outcome, now: float) -> None:
        """Do nothing."""

    def level(self, level: Level) -> None:
        """Do nothing."""


class Witnesses:
    """Tells each witness in the order given; used by one thread.

    A witness that raises, whatever it raises, is dropped with a RuntimeWarning that names it and
    what it raised: looking on never harms a request.
    """

    def __init__(self, *witnesses: Witness) -> None:
        self._present = witnesses

    @property
    def present(self) -> tuple[Witness, ...]:
        """Those who still look on."""
        return self._present

    def submitted(self, waiting: Waiting, model: str) -> None:
        """Tell all of a new request."""
        self._tell(lambda witness: witness.submitted(waiting, model))

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        """Tell all of a tick."""
        self._tell(lambda witness: witness.decided(snapshot, decision))

    def executed(self, unit: UnitRecord) -> None:
        """Tell all of a unit."""
        self._tell(lambda witness: witness.executed(unit))

    def ended(self, request_id: RequestId, outcome: Outcome, now: float) -> None:
        """Tell all of an end."""
        self._tell(lambda witness: witness.ended(request_id, outcome, now))

    def level(self, level: Level) -> None:
        """Tell all how full the engine is."""
        self._tell(lambda witness: witness.level(level))

    def _tell(self, tell: Callable[[Witness], None]) -> None:
        for witness in self._present:
            try:
                tell(witness)
            except BaseException as error:  # SystemExit too would end the device worker
                self._drop(witness, error)

    def _drop(self, witness: Witness, error: BaseException) -> None:
        self._present = tuple(other for other in self._present if other is not witness)
        # Where warnings are errors, this one would end the worker that it is meant to spare.
        with suppress(RuntimeWarning):
            warnings.warn(
                f"the witness {type(witness).__name__} raised {type(error).__name__}: {error}; "
                "it is told no more, requests go on",
                RuntimeWarning,
                stacklevel=3,
            )
