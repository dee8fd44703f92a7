"""The bytes of a request do not depend on its company, whatever schedule there is and what fails.

Every request that is neither cancelled nor at fault has exactly the bytes that it has alone; those
at fault fail typed, cancelled ones end as such, and nothing stays reserved or held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ostinato.api import Engine
from ostinato.backend.batch_rules import BatchRules, probe_batch_rules
from ostinato.backend.loading import process_settings
from ostinato.errors import DeadlineExceeded, InternalError, NonFinite
from ostinato.loop.contract import Component
from ostinato.models.registry import open_model
from ostinato.request import Cancelled, Event, Failed, Finished, LatentPart, Request
from ostinato.runtime import Handle, Output, ResidentModel, Stacking
from ostinato.runtime.needs import need_of, weights_of
from ostinato.runtime.resolve import resolve
from ostinato.runtime.scheduler import policies, policy_named
from ostinato.runtime.selection import Selection
from ostinato.tasks import RequestId
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
from support.stacks import Mark, Stacks, install_stacks, unharmed

HUGE = 3e38  # finite in float32; a sum of two is not
TENANTS = ("a", "b", "c")


class Fate(StrEnum):
    """What a request meets."""

    PLAIN = "plain"
    NO_ROOM = "no_room"  # its stacks fail at one plan, its calls do not
    RAISES = "raises"
    EXITS = "exits"
    NAN = "nan"
    OVERFLOWS = "overflows"
    LATE = "late"
    CANCELLED_WAITING = "cancelled_waiting"
    CANCELLED_AT_EVENT = "cancelled_at_event"
    CANCELLED_IN_CALL = "cancelled_in_call"


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


@dataclass(frozen=True)
class Asked:
    """A request, and what it meets: at which of its denoising plans, or after which event."""

    family: str
    side: int | None  # pixels; of Wan
    num_frames: int
    steps: int
    guidance: float
    seed: int
    fate: Fate = Fate.PLAIN
    at: int = 0
    tenant: str = "a"
    priority: int = 0
    timely: bool = False  # whether it has a deadline, far away


@dataclass(frozen=True)
class Schedule:
    """What is asked of one engine; `late` of the requests come when others have begun.

    room: how many of the largest requests have room at once; None where room is not managed.
    """

    policy: str
    max_batch: int
    stacking: Stacking
    asked: tuple[Asked, ...]
    late: int = 0
    room: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)


def _wan(side: int, **fields: object) -> Asked:
    base = Asked("wan", side, 1, 2, 1.0, 0)
    return replace(base, **fields)  # type: ignore[arg-type]


def _builtin(num_frames: int, **fields: object) -> Asked:
    base = Asked("builtin", None, num_frames, 2, 1.0, 0)
    return replace(base, **fields)  # type: ignore[arg-type]


# Fewer than 16 tokens are in a stack what they are alone on some processors only.
SIZES = st.one_of(
    st.builds(_wan, st.sampled_from((16, 32, 64, 64))),
    st.builds(_builtin, st.sampled_from((7, 12, 12, 24))),
)


@st.composite
def askings(draw: st.DrawFn, like: Asked | None = None) -> Asked:
    """Draw one request; like: of which it has the model and the size."""
    steps, size = draw(st.integers(1, 3)), draw(SIZES if like is None else st.just(like))
    fates = (Fate.PLAIN,) * 6 + tuple(Fate)
    if size.family == "builtin":  # what it returns is cut, so it is no initial latents
        fates = tuple(fate for fate in fates if fate is not Fate.OVERFLOWS)
    return replace(
        size,
        steps=steps,
        guidance=draw(st.sampled_from((1.0, 3.0))),
        seed=draw(st.integers(0, 1)),
        fate=draw(st.sampled_from(fates)),
        at=draw(st.integers(0, steps - 1)),
        tenant=draw(st.sampled_from(TENANTS)),
        priority=draw(st.integers(-1, 1)),
        timely=draw(st.booleans()),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Draw requests, many of which agree with another, and an engine for them."""
    few = draw(st.lists(askings(), min_size=1, max_size=3))
    sisters = st.lists(st.sampled_from(few).flatmap(askings), min_size=1, max_size=5)
    asked = (*few, *draw(sisters))
    return Schedule(
        policy=draw(st.sampled_from([policy.name for policy in policies()])),
        max_batch=draw(st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8))),
        stacking=draw(st.sampled_from(Stacking)),
        asked=asked,
        late=draw(st.integers(0, len(asked) - 1)),
        room=draw(st.sampled_from((None, None, 1.0, 2.5))),
        weights=draw(st.dictionaries(st.sampled_from(TENANTS), st.sampled_from((0.5, 4.0)))),
    )


class World:
    """Small models of two families, what each request makes alone, and what happened so far."""

    def __init__(self, folders: Mapping[str, Path], stacks: Stacks) -> None:
        self.stacks = stacks
        self.sources = {name: open_model(folder) for name, folder in folders.items()}
        self.loaded: dict[str, Mapping[str, Component]] = {}
        self.alone = cache(self._alone)
        self.tally = Counter[str]()
        self._sole = Engine(max_batch=1)
        self._residents = self.serve(self._sole)

    def serve(self, engine: Engine) -> dict[str, ResidentModel]:
        """Add both models; loading their components once is enough."""
        residents = {name: engine.add(source) for name, source in self.sources.items()}
        for name, resident in residents.items():
            resident._components.update(self.loaded.get(name, {}))
        return residents

    def request(self, asked: Asked) -> Request:
        """Return the request, with the latents that overflow where those are its fate."""
        request = Request(
            model=self.sources[asked.family].card.model_id,
            task="text_to_video",
            prompt="a red circle",
            negative_prompt="blurry" if asked.seed else None,
            seed=asked.seed,
            height=asked.side,
            width=asked.side,
            num_frames=asked.num_frames,
            num_inference_steps=asked.steps,
            guidance_scale=asked.guidance,
            outputs=("video", "latents"),
            tenant=asked.tenant,
            priority=asked.priority,
            deadline_s=1e-6 if asked.fate is Fate.LATE else 3600.0 if asked.timely else None,
        )
        if asked.fate is not Fate.OVERFLOWS:
            return request
        shape = self.right(asked).latents.shape
        return replace(request, inputs=(LatentPart(latents=torch.full(shape, HUGE)),))

    def right(self, asked: Asked) -> Output:
        """Return what a request makes that has the engine to itself."""
        plain = Asked(
            asked.family, asked.side, asked.num_frames, asked.steps, asked.guidance, asked.seed
        )
        return self.alone(plain)

    def memory(self, asked: Sequence[Asked], room: float) -> float:
        """Return the bytes that have room for so many of the largest request, and all weights."""
        needs, weights = [0.0], dict[str, float]()
        for each in asked:
            model = self._residents[each.family]
            spec = resolve(model.card, self.request(each), RequestId("r0"))
            selection = Selection(model, model.program(spec.task), spec)
            needs.append(need_of(selection, spec, 0.0).memory_bytes)
            weights.update(weights_of(model, selection))
        return room * max(needs) + sum(weights.values())

    def close(self) -> None:
        """Stop the engine that serves requests one by one."""
        self._sole.close()

    def _alone(self, asked: Asked) -> Output:
        output = self._sole.submit(self.request(asked)).result(WAIT_S)
        self.loaded = {name: dict(r._components) for name, r in self._residents.items()}
        return output


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
            _assert_nothing_reserved(engine, residents.values())
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


def _assert_nothing_reserved(engine: Engine, residents: Sequence[ResidentModel]) -> None:
    desk = engine._desk
    assert not desk.busy
    reservations = desk._ledger.reservations
    held, weights = reservations.held, sum(reservations.weights.values())
    assert (held.compute_s, held.pages, held.sink_bytes) == (0, 0, 0)
    assert held.memory_bytes == weights


def _all_at_once(*fates: tuple[Fate, int], like: Asked, **fields: object) -> Schedule:
    """Return a schedule of equal shapes that share every forward while none has failed."""
    plain = (replace(like, guidance=3.0), replace(like, guidance=3.0, seed=1))
    asked = (*plain, *(replace(like, fate=fate, at=at) for fate, at in fates))
    values: dict[str, object] = {"policy": "round-robin", "max_batch": 12, "asked": asked}
    return Schedule(**{"stacking": Stacking.ALWAYS, **values, **fields})  # type: ignore[arg-type]


IN_STACKS = (
    (Fate.NO_ROOM, 0),
    (Fate.NAN, 0),
    (Fate.RAISES, 1),
    (Fate.CANCELLED_IN_CALL, 1),
    (Fate.EXITS, 2),
)
EXAMPLES = (
    _all_at_once(*IN_STACKS, like=_wan(64, steps=3)),
    _all_at_once(*IN_STACKS, like=_builtin(24, steps=3)),
    _all_at_once((Fate.OVERFLOWS, 0), (Fate.PLAIN, 0), like=_wan(64)),
    # Too few tokens to be exact in a stack on some processors.
    _all_at_once((Fate.PLAIN, 0), like=_wan(16)),
)
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
