"""What of a device is taken: weights that have room, and how full it all is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from ostinato.runtime.ranks import Lead
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.scheduler import Ledger, Level, Waiting


class Room:
    """Used on the device worker only."""

    def __init__(self, ledger: Ledger, lead: Lead | None) -> None:
        """Take the desk's own; lead: tells other ranks what is unloaded here."""
        self._ledger = ledger
        self._lead = lead
        self._owners: dict[str, ResidentModel] = {}  # of components that were ever booked

    def hold(self, waiting: Waiting, model: ResidentModel) -> None:
        """Note whose weights a request has booked."""
        self._owners.update((component, model) for component, _ in waiting.weights)

    def make(self, evicted: Iterable[str]) -> None:
        """Unload what a decision says, on every rank; the ledger takes its room back itself."""
        for component in evicted:
            model = self._owners[component]
            name = component.removeprefix(f"{model.card.model_id}/")
            if self._lead is not None:
                self._lead.unloaded(model, name)
            model.unload(name)

    def level(self, here: Collection[RunningRequest]) -> Level:
        """Return how full the engine is; here: the requests that have not ended."""
        models = {id(running.model): running.model for running in here}
        pages = {str(m.card.model_id): m.pages.num_bytes for m in models.values()}
        reservations = self._ledger.reservations
        weights = Counter[str]()
        for component, size in reservations.weights.items():
            weights[self._owners[component].card.model_id] += int(size)
        return Level(
            waiting=self._ledger.num_waiting,
            ready=len(here) - self._ledger.num_waiting,
            reserved=reservations.held,
            room=reservations.room,
            page_bytes=pages,
            weight_bytes=dict(weights),
        )
