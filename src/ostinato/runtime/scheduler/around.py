"""A policy that is another one, but for what a subclass changes."""

from __future__ import annotations

from ostinato.runtime.scheduler.policy import Policy, Rank
from ostinato.runtime.scheduler.snapshot import Ready, Snapshot, Waiting


class Around:
    """Passes every question on."""

    def __init__(self, inner: Policy) -> None:
        """Take the policy that answers."""
        self._inner = inner

    @property
    def name(self) -> str:
        """The inner policy's name."""
        return self._inner.name

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return the inner policy's rank."""
        return self._inner.rank(ready, snapshot)

    def admission_rank(self, waiting: Waiting, snapshot: Snapshot) -> Rank:
        """Return the inner policy's rank."""
        return self._inner.admission_rank(waiting, snapshot)

    def hopeless(self, ready: Ready, snapshot: Snapshot) -> bool:
        """Return the inner policy's answer."""
        return self._inner.hopeless(ready, snapshot)
