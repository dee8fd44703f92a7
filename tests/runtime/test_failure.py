"""A failure that is kept keeps no frame alive, and telling of it does not fail."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from ostinato.errors import InternalError, NonFinite, OstinatoError, OutputNotWritten
from ostinato.runtime.failure import add_note_of, said, twin, typed, wrapped


class Weights:
    """Stands for what a step has in its locals."""


def raised(raises: Callable[[], object]) -> tuple[BaseException, weakref.ref[Weights]]:
    """Return what a call raises, and a reference to a local of the frame that made the call."""

    def call(weights: Weights) -> None:
        raises()

    weights = Weights()
    try:
        call(weights)
    except BaseException as error:
        return error, weakref.ref(weights)
    raise AssertionError("nothing was raised")


def circle() -> None:
    first, second = RuntimeError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    raise first


def group() -> None:
    members: list[Exception] = []
    for nested in (KeyError("a"), OSError("b")):
        try:
            raise nested
        except Exception as error:
            members.append(error)
    inner = ExceptionGroup("inner", members[:1])
    raise ExceptionGroup("outer", [inner, members[1]])


def cause_beside_context() -> None:
    try:
        raise KeyError("context")
    except KeyError as error:
        found = RuntimeError("told")
        found.__context__ = error
        found.__cause__ = ValueError("cause")
        raise found  # noqa: B904


def linked(error: BaseException) -> list[BaseException]:
    """Return an error and all that hangs on it."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if any(each is other for other in found):
            continue
        found.append(each)
        waiting += [e for e in (each.__cause__, each.__context__) if e is not None]
        waiting += list(getattr(each, "exceptions", ()))
    return found


@pytest.mark.parametrize(("raises", "count"), [(circle, 2), (group, 4), (cause_beside_context, 3)])
def test_no_frame_is_left_on_whatever_hangs_together(
    raises: Callable[[], object], count: int
) -> None:
    error, local = raised(raises)
    found = typed(error, "r1")
    assert isinstance(found, InternalError)
    assert found.__cause__ is error
    assert len(linked(error)) == count
    assert [each.__traceback__ for each in linked(error)] == [None] * count
    gc.collect()
    assert local() is None
    assert raises.__name__ in found.__notes__[0], "the trace is kept as text"


def test_a_typed_error_is_told_by_an_equal_one_of_the_requests_own() -> None:
    shared = NonFinite("NaN")
    shared.add_note("in the sampler")
    shared.__cause__ = ValueError("cause")
    one, other = typed(shared, "r1"), typed(shared, "r2")
    add_note_of(one, InternalError("a page stayed"))
    assert type(one) is type(other) is NonFinite
    assert (str(one), one.__cause__) == ("NaN", shared.__cause__)
    assert one.__notes__ == ["in the sampler", "then InternalError: a page stayed"]
    assert other.__notes__ == shared.__notes__ == ["in the sampler"]


class Demanding(OstinatoError):
    """Made of more than it keeps in its arguments."""

    def __new__(cls, *arguments: object, path: str) -> Demanding:
        return super().__new__(cls, *arguments)

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


@pytest.mark.parametrize(
    "error", [OutputNotWritten(28, "full"), OutputNotWritten("full"), Demanding("m", path="p")]
)
def test_every_typed_error_has_a_twin(error: OstinatoError) -> None:
    found = twin(error)
    assert found is not error
    assert type(found) is type(error)
    assert (found.args, str(found), vars(found)) == (error.args, str(error), vars(error))


class Mute(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise LookupError("no words")


def test_an_error_that_cannot_be_shown_is_told_all_the_same() -> None:
    assert said(Mute()) == "Mute, whose message cannot be shown"
    assert "Mute" in str(wrapped(Mute(), "r1"))


def test_groups_too_deep_for_a_trace_are_told_all_the_same() -> None:
    error: Exception = ValueError("innermost")
    for _ in range(5000):
        error = ExceptionGroup("layer", [error])
    found = typed(error, "r1")
    assert str(found).startswith("r1: ExceptionGroup: layer")
    while isinstance(error, ExceptionGroup):  # taken apart from outside: freeing it recurses
        error = error.exceptions[0]
