"""Listeners of a handle and the events of an asyncio program: in order, all, and none after."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ostinato.request import CancelScope, Event, Finished, GenerationSpec, Progress
from ostinato.runtime import Handle
from ostinato.runtime.follow import follow
from ostinato.tasks import ModelId, OutputName, RequestId, TaskType

SPEC = GenerationSpec(
    request_id=RequestId("r1"),
    model=ModelId("m"),
    task=TaskType.TEXT_TO_VIDEO,
    prompt="p",
    negative_prompt="",
    seed=0,
    height=16,
    width=16,
    num_frames=1,
    fps=16.0,
    num_inference_steps=1,
    guidance_scale=1.0,
    sampler="euler",
    flow_shift=None,
    outputs=(OutputName.VIDEO,),
)


@pytest.fixture
def handle() -> Handle:
    return Handle(SPEC, CancelScope(), lambda: None)


def sequences(events: list[Event]) -> list[int]:
    return [event.sequence for event in events]


def test_a_listener_hears_what_came_before_and_what_comes(handle: Handle) -> None:
    heard: list[Event] = []
    handle.tell_started()
    handle.subscribe(heard.append)
    assert sequences(heard) == [0]
    handle.tell_progress("denoise", 1, 1, 0.5)
    handle.tell_cancelled()
    assert heard == list(handle.events())


def test_a_listener_that_left_hears_no_more(handle: Handle) -> None:
    heard: list[Event] = []
    leave = handle.subscribe(heard.append)
    handle.tell_started()
    leave()
    leave()
    handle.tell_cancelled()
    assert sequences(heard) == [0]


def test_a_listener_may_leave_while_it_is_told(handle: Handle) -> None:
    heard: list[Event] = []

    def once(event: Event) -> None:
        heard.append(event)
        leave()

    leave = handle.subscribe(once)
    also: list[Event] = []
    handle.subscribe(also.append)
    handle.tell_started()
    handle.tell_cancelled()
    assert sequences(heard) == [0]
    assert sequences(also) == [0, 1]


def test_a_loop_is_woken_by_each_event_and_blocked_by_none(handle: Handle) -> None:
    def work(go: threading.Event) -> None:
        for step in range(100):
            handle.tell_progress("denoise", step, 100, 0.0)
        go.wait(60)
        handle.tell_cancelled()

    async def main() -> tuple[list[Event], int]:
        go, seen, turns = threading.Event(), [], 0
        thread = threading.Thread(target=work, args=(go,))
        handle.tell_started()
        thread.start()
        async for event in follow(handle):
            seen.append(event)
            if len(seen) == 101:
                await asyncio.sleep(0.05)  # nothing comes: the loop turns all the same
                turns += 1
                go.set()
        thread.join()
        return seen, turns

    seen, turns = asyncio.run(main())
    assert sequences(seen) == list(range(102))
    assert isinstance(seen[5], Progress)
    assert turns == 1


def test_a_follower_that_left_does_not_trouble_the_worker(handle: Handle) -> None:
    async def main() -> None:
        handle.tell_started()
        async for _ in follow(handle):
            break

    asyncio.run(main())
    handle.tell_cancelled()
    assert handle.done
    assert not isinstance(next(handle.events()), Finished)


def test_a_closed_loop_does_not_trouble_the_worker(handle: Handle) -> None:
    iterators = []

    async def main() -> None:
        handle.tell_started()
        iterator = follow(handle)
        iterators.append(iterator)
        await anext(iterator)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    handle.tell_progress("denoise", 1, 1, 0.0)
    handle.tell_cancelled()
    assert handle.done
