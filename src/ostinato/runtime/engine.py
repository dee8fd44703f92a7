"""The engine: any number of requests of any number of models, step by step, through one path.

Requests may be submitted from any thread. One device worker thread runs every kernel; each tick
it asks the policy whose step is next, runs that one plan, and looks at cancellation. A request
that fails, fails alone; its scope frees what it held on finish, cancel, error and close alike.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from types import TracebackType

import torch

from ostinato.card import ModelSource
from ostinato.env import Environment
from ostinato.errors import (
    BadInput,
    EngineClosed,
    InvalidRequest,
    OstinatoError,
    UnknownModel,
)
from ostinato.program import LoopNode
from ostinato.request import CancelScope, Request
from ostinato.runtime.handle import Handle
from ostinato.runtime.output import Output
from ostinato.runtime.policy import RoundRobin, TurnPolicy
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.resolve import resolve
from ostinato.runtime.running import RunningRequest
from ostinato.tasks import RequestId


class Engine:
    """Serves requests to the models that were added."""

    def __init__(self, policy: TurnPolicy | None = None) -> None:
        """Start the device worker; `policy` decides turns (round robin by default)."""
        self._forced_threads = Environment.read().num_threads
        self._policy = policy or RoundRobin()
        self._models: dict[str, ResidentModel] = {}
        self._wake = threading.Condition()
        self._inbox: list[RunningRequest] = []
        self._closing = False
        self._ids = itertools.count(1)
        self._worker = threading.Thread(target=self._work, name="ostinato-device", daemon=True)
        self._worker.start()

    def add(self, source: ModelSource) -> ResidentModel:
        """Make a model known under its card's id; raises InvalidCard or BadInput.

        Adding the same card again returns the resident model; another card under the same id is
        refused.
        """
        known = self._models.get(source.card.model_id)
        if known is None:
            known = self._models[source.card.model_id] = ResidentModel(source)
        elif known.card.digest() != source.card.digest() or known.folder != source.folder:
            raise BadInput(
                f"this engine already serves another model called {source.card.model_id!r}; "
                "derive a card with another model_id"
            )
        return known

    def submit(self, request: Request) -> Handle:
        """Validate a request and queue it.

        Raises UnknownModel, UnsupportedTask, RecipeMismatch, InvalidRequest or EngineClosed; then
        nothing was loaded and nothing is held.
        """
        model = self._models.get(request.model)
        if model is None:
            raise UnknownModel(
                f"no model {request.model!r} in this engine; added: {sorted(self._models)}"
            )
        arrival = next(self._ids)
        spec = resolve(model.card, request, RequestId(f"r{arrival}"))
        program = model.program(spec.task)
        problems = [
            problem
            for node in program.nodes
            if isinstance(node, LoopNode)
            for problem in model.loop(node.loop).check(spec, model.loop_facts(node.loop))
        ]
        if problems:
            raise InvalidRequest("; ".join(problems))
        scope = CancelScope()
        handle = Handle(spec, scope, self._notify)
        deadline = None
        if request.deadline_s is not None:
            deadline = time.monotonic() + request.deadline_s
        running = RunningRequest(
            model, program, spec, scope, handle, deadline, request.priority, arrival
        )
        with self._wake:
            if self._closing:
                raise EngineClosed("the engine is closed; make a new one")
            self._inbox.append(running)
            self._wake.notify()
        return handle

    def run(self, requests: Sequence[Request]) -> list[Output]:
        """Submit all, wait for all; raises the first failure after all have ended.

        When one of them is refused, those already submitted are cancelled.
        """
        handles: list[Handle] = []
        try:
            handles.extend(self.submit(request) for request in requests)
        except OstinatoError:
            for handle in handles:
                handle.cancel()
            raise
        for handle in handles:
            for _ in handle.events():
                pass
        return [handle.result() for handle in handles]

    def close(self) -> None:
        """Cancel what runs, free everything, stop the worker; safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._worker.join()
        self._models.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    @torch.no_grad()
    def _work(self) -> None:
        default_threads = torch.get_num_threads()
        active: dict[RequestId, RunningRequest] = {}
        for tick in itertools.count():
            with self._wake:
                self._wake.wait_for(lambda: self._inbox or active or self._closing)
                arrived, self._inbox = self._inbox, []
                closing = self._closing
            active.update((running.spec.request_id, running) for running in arrived)
            for running in list(active.values()):
                if closing or running.scope.cancelled:
                    del active[running.spec.request_id]
                    running.end_cancelled()
            if closing:
                return
            if active:
                self._tick(active, tick, default_threads)

    def _tick(
        self, active: dict[RequestId, RunningRequest], tick: int, default_threads: int
    ) -> None:
        ready = tuple(running.ready() for running in active.values())
        running = active[self._policy.choose(ready)]
        threads = self._forced_threads or running.cpu_threads or default_threads
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        if not running.turn(tick):
            del active[running.spec.request_id]
