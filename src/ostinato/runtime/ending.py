"""The end of a request: what it held is freed, and then its caller is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ostinato.errors import InternalError, OstinatoError
from ostinato.request import CancelScope
from ostinato.runtime.failure import add_note_of, wrapped
from ostinato.runtime.handle import Handle
from ostinato.runtime.output import Output


class Ending:
    """Whoever hears of the end finds nothing held, or hears that something could not be freed."""

    def __init__(self, handle: Handle, scope: CancelScope) -> None:
        """Take what tells the caller, and what holds everything that has to be freed."""
        self._handle = handle
        self._scope = scope

    def finished(self, output: Output) -> None:
        """Free everything and tell the caller what it asked for."""
        self._end(partial(self._handle.tell_finished, output))

    def cancelled(self) -> None:
        """Free everything and tell the caller that the request was cancelled."""
        self._end(self._handle.tell_cancelled)

    def failed(self, error: OstinatoError) -> None:
        """Free everything and tell the caller what went wrong, first of all `error`."""
        unfreed = self._free()
        if unfreed is not None:
            add_note_of(error, unfreed)
        self._handle.tell_failed(error)

    def _end(self, tell: Callable[[], None]) -> None:
        unfreed = self._free()
        if unfreed is None:
            tell()
        else:
            self._handle.tell_failed(unfreed)

    def _free(self) -> InternalError | None:
        """Free all; returns what went wrong there, once all was tried."""
        try:
            self._scope.close()
        except BaseException as error:
            return wrapped(error, f"request {self._handle.request_id}")
        return None
