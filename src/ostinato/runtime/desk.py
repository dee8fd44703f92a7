"""The scheduler's side of running requests: it books them, asks for decisions and has them done."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.errors import AdmissionInfeasible, InvalidMessage, OstinatoError
from ostinato.runtime.about import AboutUnit
from ostinato.runtime.alone import Alone
from ostinato.runtime.failure import twin, typed
from ostinato.runtime.needs import waiting_of
from ostinato.runtime.priced import Priced
from ostinato.runtime.pricing import Pricing
from ostinato.runtime.ranks import Lead
from ostinato.runtime.room import Room
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.scheduler import (
    Decision,
    Ledger,
    NextUnit,
    Outcome,
    Placed,
    Policy,
    Witness,
    decide,
)
from ostinato.runtime.turns import Ran, Turns
from ostinato.tasks import RequestId
from ostinato.work import Resources


class Desk:
    """Used on the device worker only, but for `require_feasible`."""

    def __init__(
        self,
        *,
        policy: Policy,
        ledger: Ledger,
        pricing: Pricing,
        turns: Turns,
        witness: Witness | None = None,
        lead: Lead | None = None,
    ) -> None:
        """Take the parts, each this desk's alone; lead: tells other ranks what is done here."""
        self._policy = policy
        self._ledger = ledger
        self._pricing = pricing
        self._turns = turns
        self._witness = witness
        self._lead = lead
        self._active: dict[RequestId, RunningRequest] = {}
        self._next: dict[RequestId, Priced] = {}
        self._alone = Alone(pricing, turns)
        self._room = Room(ledger, lead)

    @property
    def busy(self) -> bool:
        """Whether any request is here."""
        return bool(self._active)

    def require_feasible(self, running: RunningRequest) -> None:
        """Raise AdmissionInfeasible for a request that could never be admitted; from any thread."""
        waiting = waiting_of(running, compute_s=0.0)
        weights = Resources(memory_bytes=sum(size for _, size in waiting.weights))
        self._ledger.reservations.require_feasible(waiting.request_id, waiting.need + weights)

    def take(self, running: RunningRequest) -> None:
        """Book a request that has arrived; one that can never be admitted fails."""
        total = self._pricing.total(running.model, running.spec, running.selection.plans_by_node)
        waiting = waiting_of(running, total.seconds, total.unmeasured_s)
        try:
            self._ledger.submit(waiting)
            if self._lead is not None:
                self._lead.arrived(running)
        except (AdmissionInfeasible, InvalidMessage) as error:
            self._ledger.leave(waiting.request_id)
            running.end_failed(error)
            return
        self._active[running.spec.request_id] = running
        self._room.hold(waiting, running.model)
        if self._witness is not None:
            self._witness.submitted(waiting, running.model.card.model_id)

    def sweep(self, now: float) -> None:
        """End what was cancelled or has passed its deadline, whether or not it is its turn."""
        for running in list(self._active.values()):
            if running.scope.cancelled:
                if self._lead is not None:
                    self._lead.stopped(running.spec.request_id, None)
                self._leave(running, Outcome.CANCELLED, now)
                running.end_cancelled()
            elif running.claim.is_late(now):
                error = running.claim.late(running.spec.request_id, running.progress)
                self._fail(running, error, now)

    def tick(self, now: float) -> None:
        """Decide once, and do what was decided; a request that is alone may just go on."""
        if (alone := self._goes_on()) is not None:
            self._go_on(alone)
            return
        self._book()
        snapshot = self._ledger.snapshot(now, self._pricing.stack_costs)
        decision = decide(snapshot, self._policy)
        if self._witness is not None:
            self._witness.decided(snapshot, decision)
        self._room.make(decision.evicted)
        if self._lead is not None:
            self._lead.decided(decision)
        self._admit(decision)
        for request_id in decision.hopeless:
            running = self._active[request_id]
            remaining_s = self._next[request_id].unit.remaining_s
            error = running.claim.hopeless(request_id, remaining_s, running.progress)
            self._fail(running, error, now)
        for unit in decision.units:
            self._run(unit, now, snapshot.tick)

    def close(self) -> None:
        """Cancel every request."""
        if self._lead is not None:
            self._lead.close()
        for running in self.abandon():
            running.end_cancelled()

    def fail(self, error: OstinatoError) -> None:
        """Fail every request, on every rank: the worker cannot go on."""
        if self._lead is not None:
            self._lead.close(error)
        for running in self.abandon():
            running.end_failed(twin(error))

    def abandon(self) -> tuple[RunningRequest, ...]:
        """Forget every request and return them: the caller ends them."""
        here = tuple(self._active.values())
        for running in here:
            self._forget(running)
        return here

    def _admit(self, decision: Decision) -> None:
        nexts: dict[RequestId, NextUnit] = {}
        for request_id in decision.admitted:
            self._active[request_id].begin()
            nexts[request_id] = self._priced(self._active[request_id])
        self._ledger.admit(decision, nexts)

    def _run(self, unit: Placed, now: float, tick: int) -> None:
        group = [self._active[request_id] for request_id in unit.request_ids]
        priced = [self._next[request_id] for request_id in unit.request_ids]
        about = None if self._witness is None else AboutUnit.of(unit, group, tick)
        self._ledger.start(unit, now, tick)
        ran = self._turns.run(group, stacked=unit.stacked)
        self._alone.decided(group[0], priced[0], stacked=unit.stacked)
        self._ledger.stop(unit, ran.device_s)
        self._learn(group, priced, ran, stacked=unit.stacked)
        if self._witness is not None and about is not None:
            self._witness.executed(about.record(ran))
        for running, end in zip(group, ran.ends, strict=True):
            if end is None:
                self._ledger.proceed(running.spec.request_id, self._priced(running), ran.end_s)
            else:
                outcome = Outcome.FAILED if running.failed else Outcome.FINISHED
                if self._lead is not None:
                    self._lead.ended(running.spec.request_id, outcome)
                self._leave(running, outcome, ran.end_s)
                end()
        if self._witness is not None:
            self._witness.level(self._room.level(self._active.values()))

    def _learn(
        self, group: Sequence[RunningRequest], priced: Sequence[Priced], ran: Ran, *, stacked: bool
    ) -> None:
        """Teach the cost model, unless something went wrong: then times mean nothing."""
        stack = priced[0].unit.stack
        if ran.stacked and stack is not None:
            self._pricing.sound(stack)
        if any(running.failed for running in group):
            return
        if not stacked:
            self._pricing.learn(priced[0], (*group[0].calls_s, group[0].advance_s))
        elif ran.stacked:
            advances_s = [running.advance_s for running in group]
            self._pricing.learn_stack(priced, ran.executed_s, advances_s)
        elif stack is not None:
            items = sum(each.unit.items for each in priced)
            (self._pricing.forbid if ran.refused else self._pricing.fault)(stack, items)

    def _priced(self, running: RunningRequest) -> NextUnit:
        upcoming = running.upcoming()
        try:
            priced = self._pricing.price(upcoming)
        except BaseException as error:  # of a component of this request's: its next turn's
            running.meet(error)
            if self._lead is not None:
                self._lead.met(running.spec.request_id, typed(error, "a unit has no price"))
            priced = self._pricing.price(upcoming._replace(plan=None))
        self._next[running.spec.request_id] = priced
        return priced.unit

    def _goes_on(self) -> RunningRequest | None:
        """Return the request that any policy would let go on: it is alone, and well known.

        Not while somebody follows or looks on: they are told of every unit.
        """
        if len(self._active) != 1 or self._lead is not None or self._witness is not None:
            return None
        (running,) = self._active.values()
        if running.claim.deadline_s is not None or not self._alone.may_go_on(running):
            return None
        return running

    def _go_on(self, running: RunningRequest) -> None:
        ran = self._alone.go_on(running)
        (end,) = ran.ends
        if end is not None:
            outcome = Outcome.FAILED if running.failed else Outcome.FINISHED
            self._leave(running, outcome, ran.end_s)
            end()

    def _book(self) -> None:
        """Charge what ran since the last decision, as one unit, and price what is next."""
        ran = self._alone.take()
        if not ran:
            return
        (request_id,) = self._next  # nobody was admitted since
        unit = Placed(device=0, request_ids=(request_id,), predicted_s=0.0)
        self._ledger.start(unit, ran[0].start_s, self._ledger.tick)
        self._ledger.stop(unit, sum(each.device_s for each in ran))
        following = self._priced(self._active[request_id])
        self._ledger.proceed(request_id, following, ran[-1].end_s)

    def _fail(self, running: RunningRequest, error: OstinatoError, now: float) -> None:
        if self._lead is not None:
            self._lead.stopped(running.spec.request_id, error)
        self._leave(running, Outcome.FAILED, now)
        running.end_failed(error)

    def _leave(self, running: RunningRequest, outcome: Outcome, now: float) -> None:
        self._forget(running)
        if self._witness is not None:
            self._witness.ended(running.spec.request_id, outcome, now)

    def _forget(self, running: RunningRequest) -> None:
        self._book()
        request_id = running.spec.request_id
        self._ledger.leave(request_id)
        del self._active[request_id]
        self._next.pop(request_id, None)
