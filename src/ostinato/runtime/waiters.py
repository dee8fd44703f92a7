"""Threads that wait for something to change, and may be interrupted at any instant.

A Condition may not: Ctrl-C just after its lock was taken or let go leaves that lock taken for ever,
or raises RuntimeError in the place of KeyboardInterrupt. Here the lock is entered by `with` alone,
which nothing comes between, and each thread waits on a queue of its own, which holds nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

Bell = queue.SimpleQueue[None]


class Waiters:
    """Those who wait for what one lock guards."""

    def __init__(self, lock: threading.RLock) -> None:
        """Take the lock, which may have other waiters too."""
        self._lock = lock
        self._bells: list[Bell] = []

    def wait_until(self, happened: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until something has happened; returns False when it has not after `timeout_s`.

        happened: asked with the lock held, at first and after each `wake`. The caller must not hold
        the lock.
        """
        with self._lock:
            if happened():
                return True
        bell = Bell()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                if happened():
                    return True
                self._bells.append(bell)
            try:
                bell.get(timeout=None if end_s is None else max(0.0, end_s - time.monotonic()))
            except queue.Empty:
                with self._lock:
                    if bell in self._bells:
                        self._bells.remove(bell)
                    return happened()

    def wake(self) -> None:
        """Have all of them look again; by a thread that holds the lock.

        An interrupt in the middle may wake some of them only; to wake all again is harmless.
        """
        for bell in self._bells:
            bell.put(None)
        self._bells.clear()
