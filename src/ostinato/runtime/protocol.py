"""What an engine is, wherever it runs: in this process or in another one.

`Engine` and `RemoteEngine` both are; code that serves or trains is written against these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ostinato.card import ModelCard, ModelSource
from ostinato.request import Event, GenerationSpec, Request
from ostinato.runtime.output import Output
from ostinato.tasks import RequestId


class ServedModel(Protocol):
    """A model that an engine serves."""

    @property
    def card(self) -> ModelCard:
        """The model's card."""
        ...

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        ...


class RequestHandle(Protocol):
    """Follows one request from any thread; see `Handle`."""

    @property
    def spec(self) -> GenerationSpec:
        """The request with every default filled in."""
        ...

    @property
    def request_id(self) -> RequestId:
        """The request's id, unique among those that its engine serves."""
        ...

    @property
    def done(self) -> bool:
        """Whether the final event has come."""
        ...

    def cancel(self) -> None:
        """Ask for the request to stop at its next step boundary."""
        ...

    def events(self, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield every event from the first to the final one; raises TimeoutError."""
        ...

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call with every event, those that have come first; returns how to end it."""
        ...

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end, whatever it is; raises TimeoutError."""
        ...

    def result(self, timeout_s: float | None = None) -> Output:
        """Wait for the end; raises the request's own typed error or RequestCancelled."""
        ...


class TakesRequests(Protocol):
    """Where requests are submitted."""

    def submit(self, request: Request) -> RequestHandle:
        """Queue a request."""
        ...


class EngineProtocol(Protocol):
    """Serves requests to the models that were added."""

    def add(self, source: ModelSource) -> ServedModel:
        """Make a model known under its card's id; raises InvalidCard, BadInput, EngineClosed."""
        ...

    def submit(self, request: Request) -> RequestHandle:
        """Validate a request and queue it; raises typed errors, and then nothing is held."""
        ...

    def run(self, requests: Sequence[Request]) -> list[Output]:
        """Submit all, wait for all; raises the first failure after all have ended."""
        ...

    def close(self) -> None:
        """Cancel what runs and free everything; safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def run_all(engine: TakesRequests, requests: Sequence[Request]) -> list[Output]:
    """Submit all, wait for all; raises the first failure after all have ended.

    When one of them is refused, or the wait is interrupted, those already submitted are cancelled.
    """
    handles: list[RequestHandle] = []
    try:
        handles.extend(engine.submit(request) for request in requests)
        for handle in handles:
            handle.wait()
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
    return [handle.result() for handle in handles]
