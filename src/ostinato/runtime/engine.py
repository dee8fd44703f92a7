"""The engine: any number of requests of any number of models, step by step, through one path.

Requests may be submitted from any thread. One device worker thread runs every kernel; each tick
it asks the policy whose step is next, runs that one plan, and looks at cancellation. A request
that fails, fails alone; its scope frees what it held on finish, cancel, error and close alike.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Sequence
from types import TracebackType

from ostinato.card import ModelSource
from ostinato.env import Environment
from ostinato.errors import BadInput, EngineClosed, InvalidRequest, UnknownModel
from ostinato.loop.observe import Observer
from ostinato.program import LoopNode, Program
from ostinato.request import CancelScope, GenerationSpec, Request
from ostinato.runtime.core import DeviceWorker
from ostinato.runtime.handle import Handle
from ostinato.runtime.output import Output
from ostinato.runtime.policy import RoundRobin, TurnPolicy
from ostinato.runtime.protocol import run_all
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.resolve import resolve
from ostinato.runtime.running import RunningRequest
from ostinato.tasks import RequestId


class Engine:
    """Serves requests to the models that were added.

    An engine that nobody holds any more - no handle of an unfinished request either - is closed,
    and so is every engine when the interpreter exits.
    """

    def __init__(
        self,
        policy: TurnPolicy | None = None,
        *,
        max_batch: int = 1,
        observer: Observer | None = None,
    ) -> None:
        """Start the device worker.

        policy: decides turns (round robin by default). max_batch: up to so many requests whose
        next calls agree in shape share one forward, each with the bytes that it would get alone.
        observer: is shown every unit, each of which then runs by itself.
        Raises BadInput for a max_batch below 1.
        """
        if max_batch < 1:
            raise BadInput(f"max_batch is {max_batch!r}; expected a whole number of at least 1")
        self._observer = observer
        self._models: dict[str, ResidentModel] = {}
        self._models_lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pid = os.getpid()
        self._worker = DeviceWorker(
            policy or RoundRobin(),
            Environment.read().num_threads,
            max_batch if observer is None else 1,
        )
        self._finalizer = weakref.finalize(self, self._worker.stop)

    def add(self, source: ModelSource) -> ResidentModel:
        """Make a model known under its card's id; raises InvalidCard, BadInput or EngineClosed.

        Adding the same card again returns the resident model; another card under the same id is
        refused.
        """
        self._require_open()
        with self._models_lock:
            known = self._models.get(source.card.model_id)
            if known is None:
                known = self._models[source.card.model_id] = ResidentModel(source)
        if known.card.digest() != source.card.digest() or known.folder != source.folder:
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
        self._require_open()
        model = self._models.get(request.model)
        if model is None:
            raise UnknownModel(
                f"no model {request.model!r} in this engine; added: {sorted(self._models)}"
            )
        arrival = next(self._ids)
        spec = resolve(model.card, request, RequestId(f"r{arrival}"))
        program = model.program(spec.task)
        _check(model, program, spec)
        scope = CancelScope()
        running = RunningRequest(
            model=model,
            program=program,
            spec=spec,
            scope=scope,
            handle=Handle(spec, scope, self._notify),
            deadline=None if request.deadline_s is None else time.monotonic() + request.deadline_s,
            priority=request.priority,
            arrival=arrival,
            observer=self._observer,
        )
        try:
            self._worker.put(running)
        except BaseException:  # an interrupt: it may be queued, and nobody has its handle
            running.handle.cancel()
            raise
        return running.handle

    def run(self, requests: Sequence[Request]) -> list[Output]:
        """Submit all, wait for all; raises the first failure after all have ended.

        When one of them is refused, or the wait is interrupted, those already submitted are
        cancelled.
        """
        return run_all(self, requests)

    def close(self) -> None:
        """Cancel what runs, free everything, stop the worker; safe to call twice."""
        self._finalizer()
        with self._models_lock:
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
        """Wake the worker; a handle holds this method, and so the engine, until its end."""
        self._worker.notify()

    def _require_open(self) -> None:
        if os.getpid() != self._pid:
            raise EngineClosed("this engine belongs to the parent process; make one after the fork")
        if self._worker.closing:
            raise EngineClosed("the engine is closed; make a new one")


def _check(model: ResidentModel, program: Program, spec: GenerationSpec) -> None:
    """Ask every loop of the program what is wrong with the request; raises InvalidRequest."""
    problems = [
        problem
        for node in program.nodes
        if isinstance(node, LoopNode)
        for problem in model.loop(node.loop).check(spec, model.loop_facts(node.loop))
    ]
    if problems:
        raise InvalidRequest("; ".join(problems))
