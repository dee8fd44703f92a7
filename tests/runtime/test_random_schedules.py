"""Random schedules of submit, cancel, fail, deadline and close over two families on one engine,
which stacks calls that agree or does not.

The worker runs as many turns as a rule lets it, so that what follows one another is the schedule's
and not the clock's. After every rule: whatever has ended holds nothing and said so once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ostinato.api import Engine
from ostinato.errors import DeadlineExceeded, EngineClosed, InternalError, NonFinite
from ostinato.loop.contract import Component
from ostinato.models.registry import open_model
from ostinato.request import Cancelled, Failed, Finished, Request
from ostinato.runtime import Handle, Output, Stacking
from ostinato.runtime.scheduler import Ready
from ostinato.tasks import RequestId
from support.faults import (
    WAIT_S,
    Act,
    Acts,
    Holdings,
    assert_nothing_held,
    cancelling,
    ended,
    equal,
    install_acts,
    poisoned,
    raising,
)
from support.turns import ByChoice, FirstCome

FIRST_VICTIM = 10_000


class Gate(ByChoice):
    """Round robin that waits for leave before each turn."""

    def __init__(self) -> None:
        self._policy = FirstCome()
        self._changed = threading.Condition()
        self._permits = 0
        self._open = False

    def choose(self, ready: tuple[Ready, ...]) -> RequestId:
        """Choose as round robin does, once there is leave."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._open or self._permits > 0, WAIT_S)
            self._permits -= 1
            self._changed.notify_all()
        return self._policy.choose(ready)

    def let(self, turns: int, idle: Callable[[], bool]) -> None:
        """Let some turns begin, and wait until they have or there is nothing to do."""
        with self._changed:
            self._permits = turns
            self._changed.notify_all()
            while self._permits > 0 and not idle():
                self._changed.wait(0.01)
            self._permits = 0

    def open(self) -> None:
        """Let everything run."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


@pytest.fixture(scope="module")
def folders(
    tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path]
) -> Mapping[str, Path]:
    return {"builtin": tiny_builtin_folder, "wan": tiny_wan_folder("UniPCMultistepScheduler")}


@dataclass(frozen=True)
class Right:
    """Requests of both families, what each makes alone, and the components it takes."""

    cases: tuple[tuple[Request, Output], ...]
    loaded: tuple[Mapping[str, Component], ...]


@pytest.fixture(scope="module")
def right(folders: Mapping[str, Path]) -> Right:
    with Engine(max_batch=1) as engine:
        residents = [engine.add(open_model(path)) for path in folders.values()]
        builtin, wan = (resident.card.model_id for resident in residents)
        base = Request(
            model=builtin, task="text_to_video", prompt="a red circle", outputs=("video", "latents")
        )
        small = replace(base, model=wan, height=16, width=16, num_frames=1, num_inference_steps=2)
        requests = (
            replace(base, num_frames=24, num_inference_steps=1, guidance_scale=1.0),
            replace(base, num_frames=12, num_inference_steps=2, guidance_scale=2.0, seed=1),
            replace(small, guidance_scale=1.0, seed=2),
            replace(small, guidance_scale=4.0, seed=3),
        )
        cases = tuple((request, engine.submit(request).result(WAIT_S)) for request in requests)
        return Right(cases, tuple(dict(resident._components) for resident in residents))


@pytest.fixture(scope="module")
def acts() -> Iterator[Acts]:
    with pytest.MonkeyPatch.context() as patch:
        yield install_acts(patch)


class Schedules(RuleBasedStateMachine):
    """An engine, whatever was asked of it, and how each request has to end."""

    def __init__(
        self,
        folders: Mapping[str, Path],
        right: Right,
        acts: Acts,
    ) -> None:
        super().__init__()
        self.folders, self.right, self.acts = folders, right, acts
        self.handles: list[Handle] = []
        self.expected: list[Output] = []
        self.ends: list[tuple[type, ...]] = []
        self.errors: dict[int, type[Exception]] = {}
        self.seeds = iter(range(FIRST_VICTIM, FIRST_VICTIM + 10_000))
        self.closed = False

    @initialize(max_batch=st.sampled_from((1, 2, 8)))
    def start(self, max_batch: int) -> None:
        self.before = Holdings.now()
        self.gate = Gate()
        self.engine = Engine(self.gate, max_batch=max_batch, stacking=Stacking.ALWAYS)
        self.residents = [self.engine.add(open_model(path)) for path in self.folders.values()]
        for resident, loaded in zip(self.residents, self.right.loaded, strict=True):
            resident._components.update(loaded)  # loading once is enough

    def submit(self, which: int, end: type, acts: Mapping[int, Act] | None, **fields: float) -> int:
        request, expected = self.right.cases[which]
        if acts is not None:
            seed = next(self.seeds)
            self.acts.plan(seed, acts)
            fields["seed"] = seed
        self.handles.append(self.engine.submit(replace(request, **fields)))  # type: ignore[arg-type]
        self.expected.append(expected)
        self.ends.append((end,))
        return len(self.handles) - 1

    which = st.integers(0, 3)
    call = st.integers(0, 4)

    @precondition(lambda self: not self.closed)
    @rule(which=which, priority=st.integers(-1, 1))
    def submits(self, which: int, priority: int) -> None:
        self.submit(which, Finished, None, priority=priority)

    @precondition(lambda self: not self.closed)
    @rule(which=which, call=call, kind=st.sampled_from(("raise", "exit", "nan")))
    def submits_what_fails(self, which: int, call: int, kind: str) -> None:
        """Every program makes at least four calls, and the last gives bytes."""
        call = min(call, 2) if kind == "nan" else min(call, 3)
        fault: dict[str, Act] = {
            "raise": raising(RuntimeError("a cable was pulled")),
            "exit": raising(SystemExit(2)),
            "nan": poisoned,
        }
        index = self.submit(which, Failed, {call: fault[kind]})
        self.errors[index] = NonFinite if kind == "nan" else InternalError

    @precondition(lambda self: not self.closed)
    @rule(which=which, call=st.integers(0, 2))
    def submits_what_is_cancelled_within_a_call(self, which: int, call: int) -> None:
        promise = Future[Handle]()
        index = self.submit(which, Cancelled, {call: cancelling(promise)})
        promise.set_result(self.handles[index])

    @precondition(lambda self: not self.closed)
    @rule(which=which)
    def submits_what_is_late(self, which: int) -> None:
        index = self.submit(which, Failed, {}, deadline_s=1e-6)
        self.errors[index] = DeadlineExceeded

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.handles) - 1))
        if not self.handles[index].done:
            self.ends[index] = (*self.ends[index], Cancelled)
        self.handles[index].cancel()

    @precondition(lambda self: not self.closed)
    @rule(turns=st.integers(1, 12))
    def runs(self, turns: int) -> None:
        self.gate.let(turns, lambda: all(handle.done for handle in self.handles))

    @precondition(lambda self: not self.closed and len(self.handles) > 2)
    @rule()
    def closes(self) -> None:
        self.closed = True
        self.ends = [(*ends, Cancelled) for ends in self.ends]
        closing = threading.Thread(target=self.engine.close)
        closing.start()
        self.gate.open()
        closing.join(WAIT_S)
        assert all(handle.done for handle in self.handles), "close ends everything"
        with pytest.raises(EngineClosed):
            self.engine.submit(self.right.cases[0][0])

    @invariant()
    def what_has_ended_holds_nothing(self) -> None:
        for index, handle in enumerate(self.handles):
            if handle.done:
                self.look_at(index)
        if all(handle.done for handle in self.handles):
            assert [resident.pages.num_pages for resident in self.residents] == [0, 0]

    def look_at(self, index: int) -> None:
        handle, end = self.handles[index], ended(self.handles[index])
        assert handle.num_held == 0
        assert isinstance(end, self.ends[index])
        if isinstance(end, Failed):
            assert isinstance(end.error, self.errors[index])
        if isinstance(end, Finished):
            assert equal(handle.result(), self.expected[index])

    def teardown(self) -> None:
        self.gate.open()
        for index in range(len(self.handles)):
            self.look_at(index)
        self.engine.close()
        assert_nothing_held(self.before, self.residents, self.handles)


def test_any_schedule_leaves_nothing_and_harms_nobody(
    folders: Mapping[str, Path], right: Right, acts: Acts
) -> None:
    run_state_machine_as_test(
        lambda: Schedules(folders, right, acts),
        settings=settings(max_examples=12, stateful_step_count=16, deadline=None),
    )
