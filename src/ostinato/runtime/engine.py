"""The engine: any number of requests of any number of models, step by step, through one path.

Requests may be submitted from any thread. One device worker thread runs every kernel; each tick
the scheduler decides whose units run, they run, and cancellation is looked at. A request
that fails, fails alone; its scope frees what it held on finish, cancel, error and close alike.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from ostinato.card import ModelSource
from ostinato.env import Environment
from ostinato.errors import BadInput, EngineClosed, InvalidRequest, UnknownModel
from ostinato.loop.observe import Observer
from ostinato.program import LoopNode, Program
from ostinato.request import CancelScope, GenerationSpec, Request
from ostinato.runtime.claim import Claim
from ostinato.runtime.core import DeviceWorker
from ostinato.runtime.costs import CostStore
from ostinato.runtime.desk import Desk
from ostinato.runtime.handle import Handle
from ostinato.runtime.keep import CostKeeper
from ostinato.runtime.output import Output
from ostinato.runtime.pricing import Pricing
from ostinato.runtime.protocol import run_all
from ostinato.runtime.ranks import Channel, Lead
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.resolve import resolve
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.scheduler import FairShare, Ledger, Policy, Witness
from ostinato.runtime.stacking import MAX_BATCH, Batching, Stacking
from ostinato.runtime.turns import Turns
from ostinato.runtime.witness import Witnesses
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED, CostModel, Resources


class Engine:
    """Serves requests to the models that were added.

    An engine that nobody holds any more - no handle of an unfinished request either - is closed,
    and so is every engine when the interpreter exits.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        max_batch: int | None = None,
        stacking: Stacking = Stacking.WHEN_IT_PAYS,
        batching: Batching = Batching.EXACT,
        observer: Observer | None = None,
        capacity: Resources = UNLIMITED,
        tenant_weights: Mapping[str, float] | None = None,
        witness: Witness | None = None,
        costs: CostModel | CostStore | None = None,
        channel: Channel | None = None,
    ) -> None:
        """Start the device worker.

        policy: whose unit is next (fair share by default). max_batch: up to so many equal calls
        share one forward (`MAX_BATCH` by default, 1 with an observer). stacking: whether they share
        it only where the cost model says that it pays. batching: whether each gets the bytes that
        it would get alone, or, where its card declares a tolerance, values within that of them.
        observer: is shown every unit, each of which then runs by itself. capacity: what requests
        may reserve together. tenant_weights: parts of the device by tenant, 1.0 for one that is not
        named. witness: is told what was decided and run. costs: what is known of this device; it
        goes on learning. A store is read now, and written every so often and at close. channel: to
        other ranks, each of which follows what is decided here (`runtime.ranks.follow`).
        Raises BadInput for a max_batch below 1, an observer with a max_batch above 1, or a weight
        that is not above 0.
        """
        weights = dict(tenant_weights or {})
        if max_batch is None:
            max_batch = MAX_BATCH if observer is None else 1
        _require_sound(max_batch, observer, weights)
        keeper = CostKeeper(costs) if isinstance(costs, CostStore) else None
        model = costs if isinstance(costs, CostModel) else CostModel()
        self._observer = observer
        self._models: dict[str, ResidentModel] = {}
        self._models_lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pid = os.getpid()
        self._desk = Desk(
            policy=policy or FairShare(),
            ledger=Ledger(capacity=capacity, weights=weights),
            pricing=Pricing(keeper.costs if keeper else model, max_batch, stacking),
            turns=Turns(Environment.read().num_threads, batching),
            witness=None if witness is None else Witnesses(witness),
            lead=None if channel is None else Lead(channel, batching),
        )
        self._worker = DeviceWorker(self._desk)
        self._stop = partial(_stop, self._worker, keeper)
        self._finalizer = weakref.finalize(self, self._stop)

    def add(self, source: ModelSource) -> ResidentModel:
        """Make a model known under its card's id; raises InvalidCard, BadInput or EngineClosed.

        Adding the same card again returns the resident model; another card under the same id is
        refused.
        """
        with self._models_lock:
            self._require_open()
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

        Raises UnknownModel, UnsupportedTask, RecipeMismatch, InvalidRequest, AdmissionInfeasible or
        EngineClosed; then nothing was loaded and nothing is held.
        """
        self._require_open()
        model = self._models.get(request.model)
        if model is None:
            self._require_open()  # a close that came in between has forgotten all models
            raise UnknownModel(
                f"no model {request.model!r} in this engine; added: {sorted(self._models)}"
            )
        arrival = next(self._ids)
        spec = resolve(model.card, request, RequestId(f"r{arrival}"))
        program = model.program(spec.task)
        _check(model, program, spec)
        scope = CancelScope()
        now = time.monotonic()
        running = RunningRequest(
            model=model,
            program=program,
            spec=spec,
            scope=scope,
            handle=Handle(spec, scope, self._notify),
            claim=Claim(
                tenant=request.tenant,
                priority=request.priority,
                arrival=arrival,
                arrived_s=now,
                deadline_s=None if request.deadline_s is None else now + request.deadline_s,
            ),
            observer=self._observer,
        )
        self._desk.require_feasible(running)
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
        """Cancel what runs, free everything, stop the worker; safe to call twice.

        Raises InternalError on a thread that holds the process's torch settings while a turn, which
        it would wait for, needs them.
        """
        self._stop()  # by every caller, so that each returns to an engine that has stopped
        self._finalizer.detach()
        with self._models_lock:
            self._models.clear()

    def __enter__(self) -> Self:
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


def _require_sound(max_batch: int, observer: Observer | None, weights: Mapping[str, float]) -> None:
    """Raise BadInput for settings that an engine cannot have."""
    if max_batch < 1:
        raise BadInput(f"max_batch is {max_batch!r}; expected a whole number of at least 1")
    if observer is not None and max_batch > 1:
        raise BadInput(
            f"max_batch is {max_batch!r} and an observer is given, which sees units one by "
            "one; leave one of them out"
        )
    wrong = {name: weight for name, weight in weights.items() if not 0 < weight < math.inf}
    if wrong:
        raise BadInput(f"tenant_weights has {wrong}; expected finite numbers above 0")


def _stop(worker: DeviceWorker, keeper: CostKeeper | None) -> None:
    try:
        worker.stop()
    finally:
        if keeper is not None:
            keeper.close()


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
