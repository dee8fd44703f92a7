"""An engine in another process, with the protocol of `Engine`.

Requests are resolved here, against the card, so that a wrong one is refused before anything is
sent; the engine resolves them again for itself. Kernels, models and loops never run here: a server
or a trainer keeps its own loop free.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ostinato.card import ModelSource
from ostinato.errors import OstinatoError, UnknownModel
from ostinato.request import Request
from ostinato.runtime.handle import Handle
from ostinato.runtime.output import Output
from ostinato.runtime.protocol import run_all
from ostinato.runtime.remote.process import EngineHost, OtherProcess, OwnedProcess
from ostinato.runtime.remote.supervisor import Supervision, Supervisor
from ostinato.runtime.resolve import resolve
from ostinato.tasks import RequestId

ENGINE = "ostinato.runtime.remote.engine:engine_of_this_device"
BLANK_ENGINE = "ostinato.runtime.engine:Engine"  # one that knows, and keeps, nothing
_UNNAMED = RequestId("unnamed")  # until the engine has given the request its id


class RemoteEngine:
    """Serves requests on an engine process that it starts, watches and restarts.

    A request that the process is lost under fails with EngineLost; the next one is served by a new
    process. Like an `Engine`, it is closed when nobody holds it or an unfinished handle of it.
    """

    def __init__(self, factory: str = ENGINE, *, supervision: Supervision | None = None) -> None:
        """Start the process and wait until it answers.

        factory: import string of `() -> Engine`, called in the process; by default of one that
        keeps what it measures under OSTINATO_CACHE_DIR. Raises EngineLost when it does not come up.
        """
        self._begin(OwnedProcess(factory), supervision)

    @classmethod
    def attach(cls, folder: Path, *, supervision: Supervision | None = None) -> RemoteEngine:
        """Be one more client of an engine process, found by the `folder` of who started it.

        Closing this one ends its own requests, not the engine. Raises EngineLost.
        """
        engine = cls.__new__(cls)
        engine._begin(OtherProcess(folder), supervision)
        return engine

    def _begin(self, host: EngineHost, supervision: Supervision | None) -> None:
        self.folder = host.folder
        self._supervisor = Supervisor(host, supervision or Supervision())
        self._finalizer = weakref.finalize(self, self._supervisor.stop)

    def add(self, source: ModelSource) -> ModelSource:
        """Make a model known under its card's id; raises InvalidCard, BadInput or EngineClosed.

        Adding the same card again changes nothing; another card under the same id is refused.
        """
        link = self._supervisor.link()
        if self._supervisor.sources.get(source.card.model_id) != source:
            link.add(source).result()
            self._supervisor.remember(source)
        return source

    def submit(self, request: Request) -> Handle:
        """Validate a request and queue it; waits while the process is started again.

        Raises what `Engine.submit` does, and EngineLost when the process is lost meanwhile. An
        asyncio program calls it by `asyncio.to_thread` and follows the handle with `follow`.
        """
        link = self._supervisor.link()
        sources = self._supervisor.sources
        source = sources.get(request.model)
        if source is None:
            raise UnknownModel(
                f"no model {request.model!r} in this engine; added: {sorted(sources)}"
            )
        spec = resolve(source.card, request, _UNNAMED)
        answer = link.submit(request, spec, keep=self)
        try:
            return answer.result()
        except OstinatoError:
            raise
        except BaseException:  # an interrupt: it may be queued, and nobody has its handle
            if not answer.cancel() and answer.exception() is None:
                answer.result().cancel()
            raise

    def run(self, requests: Sequence[Request]) -> list[Output]:
        """Submit all, wait for all; raises the first failure after all have ended.

        When one of them is refused, or the wait is interrupted, those already submitted are
        cancelled.
        """
        return run_all(self, requests)

    def close(self) -> None:
        """Cancel what runs, end the process, leave nothing; safe to call twice."""
        self._finalizer()

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
