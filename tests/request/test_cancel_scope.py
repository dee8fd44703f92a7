"""CancelScope: whatever is held is freed exactly once, whoever closes, whatever raises."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.request import CancelScope


def test_last_held_is_first_freed() -> None:
    freed: list[int] = []
    scope = CancelScope()
    for index in range(5):
        scope.hold(lambda index=index: freed.append(index))
    assert (scope.num_held, scope.closed, freed) == (5, False, [])
    scope.close()
    assert (scope.num_held, scope.closed, freed) == (0, True, [4, 3, 2, 1, 0])


def test_closing_twice_frees_once() -> None:
    freed: list[int] = []
    scope = CancelScope()
    scope.hold(lambda: freed.append(1))
    scope.close()
    scope.close()
    assert freed == [1]


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_all_releases_run_whichever_raise(raises: list[bool]) -> None:
    freed: list[int] = []
    scope = CancelScope()

    def release(index: int) -> None:
        freed.append(index)
        if raises[index]:
            raise ValueError(index)

    for index in range(len(raises)):
        scope.hold(lambda index=index: release(index))
    if any(raises):
        with pytest.raises(ExceptionGroup) as caught:
            scope.close()
        failed = [error.args[0] for error in caught.value.exceptions]
        assert failed == [index for index in reversed(range(len(raises))) if raises[index]]
    else:
        scope.close()
    assert freed == list(reversed(range(len(raises))))
    assert scope.closed


def test_an_interrupt_in_a_release_does_not_leave_the_others() -> None:
    freed: list[int] = []
    scope = CancelScope()
    scope.hold(lambda: freed.append(1))

    def interrupted() -> None:
        raise KeyboardInterrupt

    scope.hold(interrupted)
    with pytest.raises(BaseExceptionGroup) as caught:
        scope.close()
    assert isinstance(caught.value.exceptions[0], KeyboardInterrupt)
    assert freed == [1]


def test_what_is_held_after_close_is_freed_at_once() -> None:
    freed: list[int] = []
    scope = CancelScope()
    scope.close()
    scope.hold(lambda: freed.append(1))
    assert (freed, scope.num_held) == ([1], 0)


def test_a_release_may_hold_and_close() -> None:
    freed: list[str] = []
    scope = CancelScope()

    def release() -> None:
        scope.hold(lambda: freed.append("inner"))
        scope.close()
        freed.append("closed" if scope.closed else "outer")

    scope.hold(lambda: freed.append("first"))
    scope.hold(release)
    scope.close()
    assert freed == ["inner", "outer", "first"]


def test_cancel_is_a_flag_and_frees_nothing() -> None:
    freed: list[int] = []
    scope = CancelScope()
    scope.hold(lambda: freed.append(1))
    assert not scope.cancelled
    scope.cancel()
    scope.cancel()
    assert (scope.cancelled, scope.closed, freed) == (True, False, [])


def test_closed_means_freed() -> None:
    """While a release runs the scope takes nothing more, but is not yet closed."""
    seen: list[bool] = []
    scope = CancelScope()
    scope.hold(lambda: seen.append(scope.closed))
    scope.close()
    assert seen == [False]
    assert scope.closed


def test_many_threads_hold_while_others_close() -> None:
    """Each of the holds is freed exactly once: by a close, or at once when it came too late."""
    for _ in range(20):
        freed: list[int] = []
        scope = CancelScope()
        barrier = threading.Barrier(6)

        def hold(start: int, scope=scope, barrier=barrier, freed=freed) -> None:
            barrier.wait()
            for index in range(start, start + 50):
                scope.hold(lambda index=index: freed.append(index))

        def close(scope=scope, barrier=barrier) -> None:
            barrier.wait()
            scope.close()

        threads = [threading.Thread(target=hold, args=(i * 50,)) for i in range(4)]
        threads += [threading.Thread(target=close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(freed) == list(range(200))
        assert (scope.num_held, scope.closed) == (0, True)
