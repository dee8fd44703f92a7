"""What goes wrong in a request, as an error that its caller may keep."""

from __future__ import annotations

import traceback

from ostinato.errors import InternalError, OstinatoError


def typed(error: BaseException, what: str) -> OstinatoError:
    """Return a typed error without frames: the error itself, or an InternalError about `what`.

    The trace is kept as a note, as text.
    """
    trace = "".join(traceback.format_exception(error))
    _drop_frames(error)
    if isinstance(error, OstinatoError):
        return error
    wrapped = InternalError(f"{what}: {type(error).__name__}: {error}")
    wrapped.add_note(trace)
    wrapped.__cause__ = error
    return wrapped


def _drop_frames(error: BaseException | None) -> None:
    """Forget the frames of a failure and of its causes.

    They hold weights and states, which a handle that somebody keeps must not.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
