"""The bytes of a request do not depend on its company, whatever schedule there is and what fails.

Every request that is neither cancelled nor at fault has exactly the bytes that it has alone; those
at fault fail typed, cancelled ones end as such, and nothing stays reserved or held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings

from ostinato.api import Engine
from ostinato.backend.batch_rules import BatchRules, probe_batch_rules
from ostinato.backend.loading import process_settings
from ostinato.errors import DeadlineExceeded, InternalError, NonFinite
from ostinato.request import Cancelled, Event, Failed, Finished
from ostinato.runtime import Handle
from ostinato.runtime.scheduler import policy_named
from ostinato.work import UNLIMITED
from support.faults import (
    WAIT_S,
    Holdings,
    assert_nothing_held,
    cancelling,
    ended,
    equal,
    poisoned,
    raising,
)
from support.schedules import EXAMPLES, IN_STACKS, Asked, Fate, Schedule, schedules
from support.stacks import Mark, install_stacks, unharmed
from support.world import World

ENDS: Mapping[Fate, tuple[type, ...]] = {
    Fate.PLAIN: (Finished,),
    Fate.NO_ROOM: (Finished,),
    Fate.RAISES: (InternalError,),
    Fate.EXITS: (InternalError,),
    Fate.NAN: (NonFinite,),
    Fate.OVERFLOWS: (NonFinite,),
    Fate.LATE: (DeadlineExceeded,),
    Fate.CANCELLED_WAITING: (Cancelled,),
    Fate.CANCELLED_AT_EVENT: (Cancelled, Finished),
    Fate.CANCELLED_IN_CALL: (Cancelled,),
}


@pytest.fixture(scope="module")
def world(tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path]) -> Iterator[World]:
    folders = {"builtin": tiny_builtin_folder, "wan": tiny_wan_folder("UniPCMultistepScheduler")}
    rules = cache(lambda threads: probe_batch_rules())

    def probed() -> BatchRules:
        return rules(torch.get_num_threads())  # measuring this processor once is enough

    with pytest.MonkeyPatch.context() as patch, ExitStack() as after:
        patch.setattr("ostinato.runtime.turns.probe_batch_rules", probed)
        world = World(folders, install_stacks(patch))
        after.callback(world.close)
        yield world


@dataclass
class Run:
    """One schedule on an engine of its own."""

    world: World
    schedule: Schedule

    def hold(self) -> None:
        """Run it to the end, and hold every request to how it has to end."""
        world, schedule = self.world, self.schedule
        for asked in schedule.asked:
            world.right(asked)
        capacity = UNLIMITED
        if schedule.room is not None:
            memory = world.memory(schedule.asked, schedule.room)
            capacity = replace(UNLIMITED, memory_bytes=memory)
        world.stacks.clear()
        before = Holdings.now()
        with Engine(
            policy_named(schedule.policy),
            max_batch=schedule.max_batch,
            stacking=schedule.stacking,
            capacity=capacity,
            tenant_weights=schedule.weights,
        ) as engine:
            residents = world.serve(engine)
            handles = self._submit_all(engine)
            ends = [ended(handle) for handle in handles]
            _assert_nothing_reserved(engine)
        assert_nothing_held(before, residents.values(), handles)
        for asked, handle, end in zip(schedule.asked, handles, ends, strict=True):
            self._hold(asked, handle, end)
        self._count(handles, ends)

    def _submit_all(self, engine: Engine) -> list[Handle]:
        first = len(self.schedule.asked) - self.schedule.late
        handles: list[Handle] = []
        for part in (self.schedule.asked[:first], self.schedule.asked[first:]):
            if handles:  # the rest comes when these have begun
                next(iter(handles[0].events(WAIT_S)))
            with process_settings():  # no turn is taken before all are queued
                handles += [self._submit(engine, asked) for asked in part]
        return handles

    def _submit(self, engine: Engine, asked: Asked) -> Handle:
        stacks, handle = self.world.stacks, engine.submit(self.world.request(asked))
        mark, promise = Mark(handle.request_id, asked.at), Future[Handle]()
        promise.set_result(handle)
        match asked.fate:
            case Fate.NO_ROOM:
                stacks.broken.add(mark)
            case Fate.RAISES:
                stacks.acts[mark] = raising(RuntimeError("a cable was pulled"))
            case Fate.EXITS:
                stacks.acts[mark] = raising(SystemExit(2))
            case Fate.NAN:
                stacks.acts[mark] = poisoned
            case Fate.CANCELLED_IN_CALL:
                stacks.acts[mark] = cancelling(promise)
            case Fate.CANCELLED_WAITING:
                handle.cancel()
            case Fate.CANCELLED_AT_EVENT:
                at = 2 * asked.at
                handle.subscribe(lambda event: handle.cancel() if event.sequence == at else None)
            case Fate.OVERFLOWS:
                stacks.acts[mark._replace(plan=0)] = lambda op, inputs: op(**inputs)
            case _:
                pass
        return handle

    def _hold(self, asked: Asked, handle: Handle, end: Event) -> None:
        found = type(end.error) if isinstance(end, Failed) else type(end)
        assert found in ENDS[asked.fate], f"{asked}: {end}"
        if isinstance(end, Finished):
            assert equal(handle.result(), self.world.right(asked)), asked

    def _count(self, handles: Sequence[Handle], ends: Sequence[Event]) -> None:
        tally, stacks = self.world.tally, self.world.stacks
        pairs = list(zip(self.schedule.asked, handles, ends, strict=True))
        family = {handle.request_id: asked.family for asked, handle, _ in pairs}
        guided = {handle.request_id for asked, handle, _ in pairs if asked.guidance > 1}
        fates = {handle.request_id: asked.fate for asked, handle, _ in pairs}
        finished = {handle.request_id: isinstance(end, Finished) for _, handle, end in pairs}
        tally.update(f"stacked {family[name]}" for here in stacks.formed for name in here)
        together = [here & guided for here in stacks.formed if len(here & guided) > 1]
        tally.update(f"guided {family[name]}" for here in together for name in here)
        tally.update(f"met {fates[victim]}" for victim, _ in stacks.hit)
        tally.update(f"unharmed {family[name]}" for name in unharmed(stacks, finished))


def _assert_nothing_reserved(engine: Engine) -> None:
    desk = engine._desk
    assert not desk.busy
    reservations = desk._ledger.reservations
    held, weights = reservations.held, sum(reservations.weights.values())
    assert (held.compute_s, held.pages, held.sink_bytes) == (0, 0, 0)
    assert held.memory_bytes == weights


NEEDED = (
    *(f"{what} {of}" for what in ("stacked", "guided", "unharmed") for of in ("wan", "builtin")),
    *(f"met {fate}" for fate in (*dict(IN_STACKS), Fate.OVERFLOWS)),
)


def _hold_all(world: World, chosen: settings) -> None:
    """Hold random schedules, and those at whose hands the property is sure to have been tried."""
    world.tally.clear()

    @chosen
    @given(schedule=schedules())
    def any_schedule(schedule: Schedule) -> None:
        Run(world, schedule).hold()

    for schedule in EXAMPLES:
        any_schedule = example(schedule)(any_schedule)
    any_schedule()
    missing = [name for name in NEEDED if not world.tally[name]]
    assert not missing, f"{missing} never happened, so this run proved nothing: {world.tally}"


def test_any_schedule_leaves_each_request_its_bytes(world: World) -> None:
    _hold_all(
        world,
        settings(
            max_examples=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_any_of_many_schedules_leaves_each_request_its_bytes(world: World) -> None:
    _hold_all(
        world,
        settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck)),
    )
