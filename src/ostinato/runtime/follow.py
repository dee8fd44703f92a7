"""A request's events for an asyncio program: awaited, never waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import get_args

from ostinato.request import Event, FinalEvent
from ostinato.runtime.protocol import RequestHandle

_FINAL = get_args(FinalEvent)


async def follow(handle: RequestHandle) -> AsyncIterator[Event]:
    """Yield every event of a request from the first to the final one.

    The running loop is woken by each event and blocked by none. Leaving the iteration does not
    end the request.
    """
    loop = asyncio.get_running_loop()
    waiting: deque[Event] = deque()
    came = asyncio.Event()

    def take(event: Event) -> None:
        waiting.append(event)
        came.set()

    def listener(event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody awaits
            loop.call_soon_threadsafe(take, event)

    unsubscribe = handle.subscribe(listener)
    try:
        while True:
            await came.wait()
            came.clear()
            while waiting:
                event = waiting.popleft()
                yield event
                if isinstance(event, _FINAL):
                    return
    finally:
        unsubscribe()
