"""The device worker: the thread that runs every kernel of an engine, one turn after the other.

It knows nothing of models or callers, only of running requests. Whatever happens - a policy that
raises, a fault in our own code - every request gets a final event: nobody waits for ever.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import torch

from ostinato.backend.batch_rules import BatchRules, probe_batch_rules
from ostinato.backend.loading import holds_settings
from ostinato.errors import EngineClosed, InternalError
from ostinato.loop.batch import BatchKey, Share, execute_together
from ostinato.runtime.failure import twin, typed, wrapped
from ostinato.runtime.policy import ReadyRequest, TurnPolicy
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.threads import cpu_turn, stated_threads
from ostinato.tasks import RequestId

THREAD_NAME = "ostinato-device"
Active = dict[RequestId, RunningRequest]


class DeviceWorker:
    """Owns the thread, the queue in front of it and the requests in turn."""

    def __init__(self, policy: TurnPolicy, forced_threads: int | None, max_batch: int = 1) -> None:
        """Start the thread; `forced_threads` overrides what cards say.

        max_batch: requests whose equal calls may be stacked into one turn.
        """
        self._policy = policy
        self._forced_threads = forced_threads
        self._max_batch = max_batch
        self._rules: dict[int, BatchRules] = {}  # by thread count, measured when first needed
        self._wake = threading.Condition()
        self._inbox: list[RunningRequest] = []
        self._closing = False
        self._in_turn = False  # whether a turn, which needs the process's settings, may run
        self._thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def closing(self) -> bool:
        """Whether no request is taken any more."""
        return self._closing

    def put(self, running: RunningRequest) -> None:
        """Queue a request; raises EngineClosed."""
        with self._wake:
            if self._closing:
                raise EngineClosed("the engine is closed; make a new one")
            self._inbox.append(running)
            self._wake.notify()

    def notify(self) -> None:
        """Have the worker look at cancellations; never blocks on a running step."""
        with self._wake:
            self._wake.notify()

    def stop(self) -> None:
        """Cancel what runs, free everything, end the thread; safe to call again, and from any.

        Raises InternalError on a thread that holds the process's settings, when a turn waits for
        them; the worker then ends as soon as they are free.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
            stuck = self._in_turn and holds_settings()
        if threading.current_thread() is self._thread:
            return
        if stuck:
            raise InternalError(
                "the engine is closed by a thread that holds the process's torch settings, which "
                "the turn that it has to wait for needs; close it outside of that block"
            )
        self._thread.join()

    @torch.no_grad()
    def _work(self) -> None:
        active: Active = {}
        try:
            self._serve(active)
        except BaseException as error:
            with self._wake:
                self._closing, self._in_turn = True, False
                waiting, self._inbox = self._inbox, []
            fault = wrapped(error, "the engine's worker stopped")
            for running in (*active.values(), *waiting):
                running.end_failed(twin(fault))

    def _serve(self, active: Active) -> None:
        for tick in itertools.count():
            closing = self._take(active)
            self._sweep(active, closing=closing)
            if closing:
                return
            if active:
                self._tick(active, tick)

    def _take(self, active: Active) -> bool:
        """Wait for something to do and take what has arrived; returns whether to close."""
        with self._wake:
            self._in_turn = False
            self._wake.wait_for(lambda: self._inbox or active or self._closing)
            active.update((running.spec.request_id, running) for running in self._inbox)
            self._inbox.clear()
            self._in_turn = not self._closing
            return self._closing

    def _sweep(self, active: Active, *, closing: bool) -> None:
        """End what was cancelled or has passed its deadline, whether or not it is its turn."""
        now = time.monotonic()
        for running in list(active.values()):
            if closing or running.scope.cancelled:
                del active[running.spec.request_id]
                running.end_cancelled()
            elif (late := running.deadline_error(now)) is not None:
                del active[running.spec.request_id]
                running.end_failed(late)

    def _tick(self, active: Active, tick: int) -> None:
        ready = tuple(running.ready() for running in active.values())
        leader = active[self._choose(ready)]
        group = self._group(leader, active, ready)
        with cpu_turn(stated_threads(self._forced_threads, leader.cpu_threads)) as threads:
            if len(group) == 1:
                ends = [leader.turn(tick, threads)]
            else:
                ends = self._turn_together(group, tick, threads)
        for running, end in zip(group, ends, strict=True):
            if end is not None:
                del active[running.spec.request_id]
                end()

    def _choose(self, ready: tuple[ReadyRequest, ...]) -> RequestId:
        chosen = self._policy.choose(ready)
        if all(request.request_id != chosen for request in ready):
            raise InternalError(f"the policy chose {chosen!r}, which is not among the ready")
        return chosen

    def _group(
        self, leader: RunningRequest, active: Active, ready: tuple[ReadyRequest, ...]
    ) -> list[RunningRequest]:
        """Return the leader and those whose calls go with its own, as the policy picks them."""
        key = leader.batch_key() if self._max_batch > 1 else None
        if key is None:
            return [leader]
        group = [leader]
        alike = tuple(
            request
            for request in ready
            if active[request.request_id] is not leader
            and _goes_with(leader, active[request.request_id], key)
        )
        while alike and len(group) < self._max_batch:
            chosen = self._choose(alike)
            group.append(active[chosen])
            alike = tuple(request for request in alike if request.request_id != chosen)
        return group

    def _turn_together(
        self, group: list[RunningRequest], tick: int, threads: int
    ) -> list[Callable[[], None] | None]:
        started = time.perf_counter()
        try:
            rules = self._rules_at(threads)
            # What the probe takes is nobody's device time, and neither is a trial of shapes.
            started, tried_s = time.perf_counter(), rules.trials_s
            model, plans = group[0].model, [running.plan for running in group]
            shares = execute_together(plans, model.component, model.pages, rules)
            started += rules.trials_s - tried_s
        except BaseException as error:  # theirs, not the worker's: the others go on
            fault = typed(error, f"a stack of {len(group)} requests failed")
            shares = (Share(error=fault),) * len(group)
        device_s = (time.perf_counter() - started) / len(group)
        return [
            running.share(tick, threads, share, device_s)
            for running, share in zip(group, shares, strict=True)
        ]

    def _rules_at(self, threads: int) -> BatchRules:
        if threads not in self._rules:
            self._rules[threads] = probe_batch_rules()
        return self._rules[threads]


def _goes_with(leader: RunningRequest, other: RunningRequest, key: BatchKey) -> bool:
    return other.model is leader.model and other.batch_key() == key
