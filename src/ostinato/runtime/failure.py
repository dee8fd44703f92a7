"""What goes wrong in a request, as an error that its caller may keep.

Frames hold weights and states, which a handle that somebody keeps must not; so none are left on an
error, nor on anything that it came from. Telling of a failure must not fail itself, whatever
another's exception does when it is shown.
"""

from __future__ import annotations

import traceback
from typing import cast

from ostinato.errors import InternalError, OstinatoError
from ostinato.work import WorkPlan


def typed(error: BaseException, what: str) -> OstinatoError:
    """Return a typed error without frames: an equal one, or an InternalError about `what`.

    An equal one and not the error itself: another request may have met the same.
    """
    if not isinstance(error, OstinatoError):
        return wrapped(error, what)
    _drop_frames(error)
    return twin(error)


def wrapped(error: BaseException, what: str) -> InternalError:
    """Return an InternalError about `what`, without frames; the trace is a note, as text."""
    found = InternalError(f"{what}: {said(error)}")
    found.add_note(_trace(error))
    _drop_frames(error)
    found.__cause__ = error
    return found


def twin(error: OstinatoError) -> OstinatoError:
    """Return an equal error to raise.

    Raising an exception hangs the caller's frames on it. On the handle's own they would stay as
    long as the handle, more of them with every call and from every thread that asks.
    """
    # Only the constructor of its built-in base makes every error, whatever a class asks for.
    base = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    found = base.__new__(type(error), *error.args)
    found.args = error.args
    found.__dict__.update(error.__dict__)
    if hasattr(error, "__notes__"):
        found.__notes__ = [*error.__notes__]
    found.__context__, found.__cause__ = error.__context__, error.__cause__
    found.__suppress_context__ = error.__suppress_context__
    return found


def add_note_of(error: OstinatoError, later: OstinatoError) -> None:
    """Note on an error what went wrong after it, with its own notes."""
    error.add_note("\n".join([f"then {said(later)}", *getattr(later, "__notes__", ())]))


def unstacked(plan: WorkPlan, error: BaseException) -> str:
    """Return the sentence for a caller whose calls ran alone, since a stack of them failed."""
    ops = sorted({f"{call.component}.{call.op}" for call in plan.calls})
    return (
        f"calls of {', '.join(ops)} ran one by one: a stack of them failed, though each runs "
        f"alone ({said(error)})"
    )


def said(error: BaseException) -> str:
    """Return the type and the message of any error."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # another's faulty __str__
        return f"{name}, whose message cannot be shown"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # groups so deep, or parts so faulty, that they cannot be formatted
        return "".join(traceback.format_tb(error.__traceback__))


def _drop_frames(error: BaseException) -> None:
    """Forget the frames of an error, and of all that it came from or is made of."""
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        found.__traceback__ = None
        linked = (found.__cause__, found.__context__, *_members(found))
        waiting += [other for other in linked if other is not None]


def _members(error: BaseException) -> tuple[BaseException, ...]:
    if not isinstance(error, BaseExceptionGroup):
        return ()
    return cast("BaseExceptionGroup[BaseException]", error).exceptions
