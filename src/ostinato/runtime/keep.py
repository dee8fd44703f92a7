"""Keeps what an engine measures: in its device's file at close, and now and then before.

The device worker only notes what it measured. Files are read and written by a thread that no
request waits for, or by whoever closes the engine.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from ostinato.runtime.costs import CostStore
from ostinato.work import CostKey, CostModel, Measured, OpWork

THREAD_NAME = "ostinato-costs"
SAVE_EVERY_S = 300.0  # what a killed process has measured since is lost
MAX_NOTED = 2**14  # measurements between two writes, the latest: learning them takes a moment


class _Note(NamedTuple):
    """One measurement, as the cost model was told of it."""

    key: CostKey
    work: OpWork
    seconds: float


class _NotingCosts(CostModel):
    """A cost model that notes what it is told, too."""

    def __init__(self, measured: tuple[Measured, ...], note: Callable[[_Note], None]) -> None:
        super().__init__(measured=measured)
        self._note = note

    def observe(self, key: CostKey, work: OpWork, seconds: float) -> None:
        super().observe(key, work, seconds)
        self._note(_Note(key, work, seconds))


class CostKeeper:
    """Between the cost model of one engine and the file that engines of a device share.

    What is new is learnt on top of what the file holds at that time, so engines of one process and
    of several add to each other. Of two that write in the same instant, the later one's file
    stands, whole. A file that is no use is told of by a RuntimeWarning and replaced; so is, once, a
    file that cannot be written, and then the engine works on.
    """

    def __init__(self, store: CostStore, *, every_s: float = SAVE_EVERY_S) -> None:
        """Read the file; the thread that writes it starts with the first measurement."""
        self._store = store
        self._every_s = every_s
        self._notes = deque[_Note](maxlen=MAX_NOTED)
        self._pid = os.getpid()
        self._saving = threading.Lock()
        self._closing = threading.Event()
        self._told = False  # that the file cannot be written
        self._thread: threading.Thread | None = None
        loaded = store.load()
        if loaded.note is not None:
            _warn(loaded.note)
        self.costs: CostModel = _NotingCosts(loaded.measured, self._note)

    def save(self) -> None:
        """Write what was measured since the last time; from any thread."""
        with self._saving:
            if not self._notes:
                return
            model = self._store.load().to_model()
            learnt: list[_Note] = []
            while self._notes:
                learnt.append(self._notes.popleft())
                model.observe(*learnt[-1])
            try:
                self._store.save(model)
            except OSError as error:
                # What came meanwhile is newer: of what was not written the oldest is dropped.
                self._notes.extendleft(
                    reversed(learnt[max(0, len(learnt) + len(self._notes) - MAX_NOTED) :])
                )
                if not self._told:
                    self._told = True
                    _warn(
                        f"measured costs cannot be kept in {str(self._store.path)!r}: {error}; the "
                        "next process measures anew. Set OSTINATO_CACHE_DIR to a folder that can "
                        "be written"
                    )

    def close(self) -> None:
        """Write a last time; safe to call twice. Does nothing in a process that was forked off."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        if threading.current_thread() is self._thread:  # the collector may end an engine anywhere
            return
        if self._thread is not None:
            self._thread.join()
        self.save()

    def _note(self, note: _Note) -> None:
        self._notes.append(note)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name=THREAD_NAME, daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        while not self._closing.wait(self._every_s):
            self.save()
        self.save()


def _warn(message: str) -> None:
    # Where warnings are errors, this one would end an engine that works well without the file.
    with suppress(RuntimeWarning):
        warnings.warn(message, RuntimeWarning, stacklevel=3)
