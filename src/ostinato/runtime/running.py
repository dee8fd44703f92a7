"""One running request: its program, its state, its scope, and what it has delivered so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ostinato.errors import OstinatoError
from ostinato.loop.batch import Share
from ostinato.loop.contract import Done
from ostinato.loop.cost import CallClock
from ostinato.loop.execute import commit, execute
from ostinato.loop.observe import Observer, Unit
from ostinato.program import Program, ProgramRun, ProgramState
from ostinato.request import CancelScope, GenerationSpec
from ostinato.runtime.claim import Claim
from ostinato.runtime.context import loop_context
from ostinato.runtime.delivery import Delivery
from ostinato.runtime.ending import Ending
from ostinato.runtime.failure import typed, unstacked
from ostinato.runtime.handle import Handle
from ostinato.runtime.output import Output
from ostinato.runtime.priced import NextPlan
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.result import Spent, make_output
from ostinato.runtime.selection import Selection
from ostinato.runtime.watch import located, require_finite
from ostinato.work import WorkPlan, WorkResult


class RunningRequest:
    """Advanced one plan at a time, on the device worker only."""

    def __init__(
        self,
        *,
        model: ResidentModel,
        program: Program,
        spec: GenerationSpec,
        scope: CancelScope,
        handle: Handle,
        claim: Claim,
        observer: Observer | None = None,
    ) -> None:
        """Select the least nodes."""
        self.spec = spec
        self.scope = scope
        self.handle = handle
        self.model = model
        self.claim = claim
        self._observer = observer
        self._selection = Selection(model, program, spec)
        context = partial(loop_context, model, spec, scope)
        self._run = ProgramRun(spec, self._selection.nodes, model.loop, context)
        self._state: ProgramState | None = None
        self._plan: WorkPlan | Done | None = None  # of the state; None before the first turn
        self._fault: BaseException | None = None  # met between turns
        self._spent = Spent(tenant=claim.tenant)
        self._delivery = Delivery(handle, spec, self._selection)
        self._ending = Ending(handle, scope)
        self.calls_s: tuple[float, ...] = ()  # of the latest unit that ran alone, call by call
        self.advance_s = 0.0  # of the latest unit
        self.failed = False  # whether the latest unit did

    @property
    def cpu_threads(self) -> int | None:
        """Threads that the model's card wants for its kernels."""
        return self.model.card.cpu_threads

    @property
    def selection(self) -> Selection:
        """What the request needs of its program."""
        return self._selection

    @property
    def node(self) -> str:
        """Name of the node whose unit is next; empty before the request has begun."""
        return "" if self._state is None else self._run.node_name(self._state)

    @property
    def faulty(self) -> bool:
        """Whether the next turn will raise what was met between turns."""
        return self._fault is not None

    @property
    def spent(self) -> Spent:
        """What the request has cost so far."""
        return self._spent

    @property
    def plan(self) -> WorkPlan:
        """What the next turn runs; known once the first turn is over."""
        assert isinstance(self._plan, WorkPlan), "a request that has begun and has not ended"
        return self._plan

    def meet(self, error: BaseException) -> None:
        """Take a fault that was met between turns: the next turn, taken alone, raises it."""
        self._fault = error

    def upcoming(self) -> NextPlan:
        """Describe the next unit for pricing."""
        plan = self._plan if isinstance(self._plan, WorkPlan) else None
        if plan is not None and not self.model.holds(call.component for call in plan.calls):
            plan = None
        return NextPlan(
            model=self.model,
            spec=self.spec,
            node=self.node,
            plan=plan,
            # With an observer every unit runs by itself.
            stackable=self._observer is None,
            plans_left=self._delivery.plans_left,
        )

    def begin(self) -> None:
        """Make the first state; a fault in it is met by the first turn."""
        try:
            self._state = self._run.enter(self._run.init())
            self._plan = self._run.next(self._state)
        except BaseException as error:
            self._fault = error

    @property
    def progress(self) -> str:
        """How far it has come, in words."""
        return f"after {self._delivery.num_done} of {self._delivery.total} steps"

    def turn(self, num_threads: int) -> Callable[[], None] | None:
        """Run one plan; returns None, or how to end the request when this was its last.

        The worker ends it once the turn is over: who hears of the end finds the process as it
        was. Whatever a step raises, SystemExit included, is this request's failure alone.
        """
        return self._take_turn(num_threads, self._step)

    def share(self, num_threads: int, share: Share, device_s: float) -> Callable[[], None] | None:
        """Take what a stack made of this request's plan, as `turn` does what it makes alone.

        device_s: this request's part of what the stack cost.
        """

        def step() -> None:
            assert self._state is not None, "a plan was stacked, so there is a state"
            if share.error is not None:
                with located(self._where(self._run.node_name(self._state))):
                    raise share.error
            assert share.result is not None, "a share has a result or an error"
            if share.stack_error is not None:
                self._delivery.advise(unstacked(self.plan, share.stack_error))
            self._spent.stacked_steps += share.stacked
            self._spent.fast_steps += not share.exact
            self._fold(self._state, self.plan, share.result, device_s)

        return self._take_turn(num_threads, step, executed_s=device_s)

    def _take_turn(
        self, num_threads: int, step: Callable[[], None], *, executed_s: float = 0.0
    ) -> Callable[[], None] | None:
        """Take a step; executed_s: device-seconds that were spent on it before."""
        self._spent.cpu_threads = num_threads
        started = time.perf_counter() - executed_s
        before_s = self._spent.device_s + self._spent.load_s
        try:
            if self._delivery.num_done == 0:
                self._spent.queued_s = time.monotonic() - self.claim.arrived_s
                self.handle.tell_started()
            if self._fault is not None:
                raise self._fault
            step()
            if not isinstance(self._plan, Done):
                return None
            output = self._output()
        except BaseException as error:
            self.failed = True
            # What a unit took before it failed is not free, or failing late would be a way to get
            # more than one's share.
            took_s = time.perf_counter() - started
            counted_s = self._spent.device_s + self._spent.load_s - before_s
            self._spent.lose(self.node, max(0.0, took_s - counted_s))
            return partial(self.end_failed, self._failure(error))
        return partial(self._end_finished, output)

    def end_cancelled(self) -> None:
        """Free everything and tell the caller that the request was cancelled."""
        self._forget()
        self._ending.cancelled()

    def end_failed(self, error: OstinatoError) -> None:
        """Free everything and tell the caller what went wrong, first of all `error`."""
        self._forget()
        self._ending.failed(error)

    def _end_finished(self, output: Output) -> None:
        self._forget()
        self._ending.finished(output)

    def _forget(self) -> None:
        self._state = self._plan = self._fault = None

    def _failure(self, error: BaseException) -> OstinatoError:
        done = self._delivery.num_done
        return typed(error, f"request {self.spec.request_id} failed at step {done}")

    def _step(self) -> None:
        assert self._state is not None, "a request begins when it is admitted"
        state, plan = self._state, self.plan
        self._spent.load_s += self.model.load_s(tuple(call.component for call in plan.calls))
        node = self._run.node_name(state)
        watch = None
        if self._observer is not None:
            unit = Unit(self.spec.request_id, node, self._delivery.num_done + 1)
            watch = self._observer.watch(unit)
        clock = CallClock(beside=watch)
        started = time.perf_counter()
        with located(self._where(node)):
            result = execute(plan, self.model.component, self.model.pages, watch=clock)
        self._fold(state, plan, result, time.perf_counter() - started)
        self.calls_s = tuple(clock.seconds)

    def _fold(
        self, state: ProgramState, plan: WorkPlan, result: WorkResult, executed_s: float
    ) -> None:
        """Commit and advance: what follows the calls of a plan, stacked or not."""
        node = self._run.node_name(state)
        started = time.perf_counter()
        where = self._where(node)
        require_finite(result, where)
        commit(plan, result, self.model.pages)
        with located(where):
            state = self._run.advance(state, result)
        self.advance_s = time.perf_counter() - started
        self._spent.add(node, plan, executed_s + self.advance_s)
        self._delivery.step_done(state, node, self._spent.device_s)
        self._state = self._run.enter(state)
        self._plan = self._run.next(self._state)

    def _where(self, node: str) -> str:
        return (
            f"request {self.spec.request_id}: step {self._delivery.num_done + 1} of node {node!r}"
        )

    def _output(self) -> Output:
        assert self._state is not None
        return make_output(
            card=self.model.card,
            spec=self.spec,
            values=self._selection.outputs(self._state),
            advice=self._delivery.advice,
            spent=self._spent,
        )
