"""CancelScope: one per request; whatever the request holds is freed here and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable


class CancelScope:
    """Owns what a request holds and frees it on finish, cancel, error and disconnect alike.

    `cancel` may be called from any thread; it only sets a flag that the engine reads at the next
    step boundary. `close` runs the registered releases in reverse order, each once, and runs all
    of them even when one raises; whoever finds it closed already does not wait for them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._releases: list[Callable[[], None]] = []
        self._closing = False
        self._closed = False

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for the request to stop."""
        return self._cancelled

    @property
    def closed(self) -> bool:
        """Whether everything the request held has been freed."""
        return self._closed

    @property
    def num_held(self) -> int:
        """Count of things still held."""
        return len(self._releases)

    def cancel(self) -> None:
        """Ask for the request to stop at the next step boundary."""
        self._cancelled = True

    def hold(self, release: Callable[[], None]) -> None:
        """Register how to free something; on a closed scope it is freed at once."""
        with self._lock:
            if not self._closing:
                self._releases.append(release)
                return
        release()

    def close(self) -> None:
        """Free everything; raises an exception group when releases failed, after running all."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        failures: list[BaseException] = []
        while self._releases:
            try:
                self._releases.pop()()
            except BaseException as error:
                failures.append(error)
        self._closed = True
        if failures:
            raise BaseExceptionGroup("releasing what a request held failed", failures)
