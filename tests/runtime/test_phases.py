"""Nothing leaks: a request that is cancelled or fails, at whichever call, leaves nothing behind.

Every test runs the victim beside requests of both families. They end with the bytes that they have
alone, and pages, bytes, scopes, threads and descriptors are back to the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
import torch

from ostinato.api import Engine
from ostinato.errors import InvalidCheckpoint, OstinatoError
from ostinato.loop.chunks.rollout import ChunkRollout
from ostinato.loop.denoise import Denoise
from ostinato.models.builtin.components import BuiltinTransformer
from ostinato.models.registry import open_model
from ostinato.models.wan.components import WanTransformer
from ostinato.program import ProgramRun, ProgramState
from ostinato.request import Cancelled, Event, Failed, Finished, Request, Started
from ostinato.runtime import Handle, Output, ResidentModel
from ostinato.work import PageRef, WorkPlan
from support.faults import (
    WAIT_S,
    Act,
    Acts,
    Holdings,
    Inputs,
    Op,
    assert_nothing_held,
    cancelling,
    ended,
    equal,
    install_acts,
    poisoned,
    raising,
)

FAMILIES = ("builtin", "wan")


@dataclass
class Stage:
    """One engine with two models, kept through all tests of this file, and what is right."""

    engine: Engine
    residents: Mapping[str, ResidentModel]
    acts: Acts
    victims: Mapping[str, Request]
    others: tuple[Request, ...]
    right: Mapping[str, Output]
    right_others: tuple[Output, ...]
    calls: Mapping[str, tuple[str, ...]]
    start: Holdings

    def __post_init__(self) -> None:
        self._seeds = count(1000)

    def play(self, family: str, acts: Callable[[Future[Handle]], Mapping[int, Act]]) -> Event:
        """Run the victim between the others; returns its final event, all else being right."""
        seed, promise = next(self._seeds), Future[Handle]()
        self.acts.plan(seed, acts(promise))
        first, *rest = self.others
        handles = [self.engine.submit(first)]
        victim = self.engine.submit(replace(self.victims[family], seed=seed))
        promise.set_result(victim)
        handles += [self.engine.submit(other) for other in rest]
        end = ended(victim)
        outputs = [handle.result(WAIT_S) for handle in handles]
        assert all(equal(a, b) for a, b in zip(outputs, self.right_others, strict=True))
        assert_nothing_held(self.start, self.residents.values(), [victim, *handles])
        return end


def small(model: str, family: str, **fields: object) -> Request:
    sizes = {
        "builtin": {"num_frames": 24, "num_inference_steps": 2, "guidance_scale": 2.0},
        "wan": {"num_frames": 1, "num_inference_steps": 2, "height": 16, "width": 16},
    }
    base = {"model": model, "task": "text_to_video", "prompt": "a red circle bouncing", "seed": 1}
    return Request.build(**{**base, **sizes[family], "outputs": ("video", "latents"), **fields})


@pytest.fixture(scope="module")
def folders(
    tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path]
) -> Mapping[str, Path]:
    return {"builtin": tiny_builtin_folder, "wan": tiny_wan_folder("UniPCMultistepScheduler")}


@pytest.fixture(scope="module")
def stage(folders: Mapping[str, Path]) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch, Engine(max_batch=1) as engine:
        acts = install_acts(patch)
        residents = {family: engine.add(open_model(folders[family])) for family in FAMILIES}
        names = {family: str(residents[family].card.model_id) for family in FAMILIES}
        victims = {family: small(names[family], family) for family in FAMILIES}
        others = (
            small(
                names["builtin"],
                "builtin",
                num_frames=24,
                num_inference_steps=1,
                guidance_scale=1.0,
                seed=2,
            ),
            small(names["wan"], "wan", guidance_scale=1.0, seed=3),
        )
        calls: dict[str, tuple[str, ...]] = {}
        right: dict[str, Output] = {}
        for seed, family in enumerate(FAMILIES, start=500):
            acts.plan(seed, {})
            right[family] = engine.submit(replace(victims[family], seed=seed)).result(WAIT_S)
            calls[family] = tuple(acts.made[seed])
        right_others = tuple(engine.submit(other).result(WAIT_S) for other in others)
        yield Stage(
            engine=engine,
            residents=residents,
            acts=acts,
            victims=victims,
            others=others,
            right=right,
            right_others=right_others,
            calls=calls,
            start=Holdings.now(),
        )


def failure(event: Event) -> OstinatoError:
    assert isinstance(event, Failed), event
    return event.error


def test_the_phases_are_all_there(stage: Stage) -> None:
    """What follows walks over these calls; a phase that is missing here is tested nowhere."""
    block = ("transformer.predict",) * 2 + ("codec.decode",)
    encoded = ("text_encoder.encode",) * 2
    assert stage.calls["builtin"] == (
        *encoded,
        "transformer.encode_text",
        *block,
        "transformer.store",
        *block,
    )
    assert stage.calls["wan"] == (*encoded, *("transformer.predict",) * 4, "vae.decode")


@pytest.mark.parametrize("family", FAMILIES)
def test_cancel_at_every_call(stage: Stage, family: str) -> None:
    *before_last, last = range(len(stage.calls[family]))
    for index in before_last:
        end = stage.play(family, lambda victim, index=index: {index: cancelling(victim)})
        assert isinstance(end, Cancelled), stage.calls[family][index]
    end = stage.play(family, lambda victim: {last: cancelling(victim)})
    assert isinstance(end, Finished), "no step boundary was left to stop at"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_at_every_call(stage: Stage, family: str) -> None:
    faults = (RuntimeError("a cable was pulled"), MemoryError("no room"), SystemExit(3))
    for index, name in enumerate(stage.calls[family]):
        fault = faults[index % len(faults)]
        error = failure(stage.play(family, lambda _, i=index, f=fault: {i: raising(f)}))
        assert error.code == "internal", name
        assert type(fault).__name__ in str(error)
        assert error.__cause__ is fault
        assert fault.__traceback__ is None, "a kept error would keep weights and states"


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_at_every_call_names_the_tensor(stage: Stage, family: str) -> None:
    tensor = {
        "encode": "prompt_embeds",
        "encode_text": "text_kv[0][0]",
        "predict": "prediction",
        "store": "layers[0][0]",
        "decode": "frames",
    }
    for index, name in enumerate(stage.calls[family]):
        act = into_decode if name.endswith(".decode") else poisoned
        error = failure(stage.play(family, lambda _, i=index, act=act: {i: act}))
        assert error.code == "non_finite", name
        assert f"'{tensor[name.partition('.')[2]]}'" in str(error)


def into_decode(op: Op, inputs: Inputs) -> Mapping[str, object]:
    """Have the decoder itself meet NaN: what it gives is bytes, in which NaN cannot be seen."""
    latents = inputs["latents"]
    assert isinstance(latents, torch.Tensor)
    spoilt = latents.clone()
    spoilt[..., -1, -1] = float("nan")
    return op(latents=spoilt)


def overflowing(op: Op, inputs: Inputs) -> Mapping[str, object]:
    """Predict what is finite, and is not after guidance and the sampler's step."""
    prediction = op(**inputs)["prediction"]
    assert isinstance(prediction, torch.Tensor)
    return {"prediction": torch.where(prediction > 0, 3.4e38, -3.4e38)}


@pytest.mark.parametrize("family", FAMILIES)
def test_overflow_in_every_advance_names_the_step(stage: Stage, family: str) -> None:
    predictions = [i for i, name in enumerate(stage.calls[family]) if name.endswith(".predict")]
    each = 1 if family == "builtin" else 2  # calls a step: branches are stacked, or apart
    for step, index in enumerate(predictions[each - 1 :: each]):
        error = failure(stage.play(family, lambda _, i=index: {i: overflowing}))
        assert error.code == "non_finite"
        assert f"denoise step {step % 2 + 1} of 2" in str(error)
        assert "latents" in str(error)


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_found_by_a_decoder_or_sampler_is_located_too(stage: Stage, family: str) -> None:
    last = len(stage.calls[family]) - 1
    for index, act in ((last - 1, overflowing), (last, into_decode)):
        error = failure(stage.play(family, lambda _, i=index, act=act: {i: act}))
        assert re.search(r"request r\d+: step \d+ of node '\w+'", str(error))


@pytest.mark.parametrize(("family", "loop"), [("builtin", ChunkRollout), ("wan", Denoise)])
def test_a_fault_in_every_advance(
    stage: Stage, family: str, loop: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, seen = loop.advance, count()
    fails_at: list[int] = []

    def faulty(self: object, state: object, result: object) -> object:
        if state.spec.seed >= 1000 and next(seen) == fails_at[-1]:  # type: ignore[attr-defined]
            raise ZeroDivisionError("sigma is 0")
        return advance(self, state, result)

    monkeypatch.setattr(loop, "advance", faulty)
    for step in range(6 if family == "builtin" else 2):
        fails_at.append(step)
        seen = count()
        error = failure(stage.play(family, lambda _: {}))
        assert error.code == "internal"
        assert "sigma is 0" in str(error)


def test_a_page_that_cannot_be_committed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    next_plan = ProgramRun.next

    def stale(self: ProgramRun, state: ProgramState) -> object:
        plan = next_plan(self, state)
        if self._spec.seed < 1000 or not isinstance(plan, WorkPlan):
            return plan
        commits = tuple(
            replace(c, target=PageRef(page=c.target.page, version=7)) for c in plan.commits
        )
        return replace(plan, commits=commits)

    monkeypatch.setattr(ProgramRun, "next", stale)
    assert failure(stage.play("builtin", lambda _: {})).code == "page_violation"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(1), KeyboardInterrupt()])
def test_a_release_that_raises(stage: Stage, family: str, error: BaseException) -> None:
    """The others that the scope holds are released all the same."""

    def release() -> None:
        raise error

    def hold(victim: Future[Handle]) -> Mapping[int, Act]:
        def act(op: Op, inputs: Inputs) -> Mapping[str, object]:
            victim.result(WAIT_S)._scope.hold(release)
            return op(**inputs)

        return {3: act}

    found = failure(stage.play(family, hold))
    assert found.code == "internal"
    assert "releasing what a request held failed" in str(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_component_that_does_not_load_once(
    stage: Stage, folders: Mapping[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever needs it next loads it, in the same engine."""
    kind = BuiltinTransformer if family == "builtin" else WanTransformer
    load, tries = kind.load, count()

    def unreadable(*arguments: object) -> object:
        if next(tries) < 2:
            raise (InvalidCheckpoint("cut short"), OSError("no such device"))[len(codes)]
        return load(*arguments)

    monkeypatch.setattr(kind, "load", unreadable)
    codes: list[str] = []
    with Engine(max_batch=1) as engine:
        residents = {name: engine.add(open_model(folders[name])) for name in FAMILIES}
        held = Holdings.now()
        for _ in range(2):
            victim = engine.submit(replace(stage.victims[family], seed=1))
            other = engine.submit(next(o for o in stage.others if o.model != victim.spec.model))
            codes.append(failure(ended(victim)).code)
            assert other.result(WAIT_S)
            assert_nothing_held(held, residents.values(), [victim, other])
        seed = 500 + FAMILIES.index(family)
        again = engine.submit(replace(stage.victims[family], seed=seed))
        assert equal(again.result(WAIT_S), stage.right[family])
    assert codes == ["invalid_checkpoint", "internal"]


def test_cancel_while_queued(stage: Stage) -> None:
    """A request that never had a turn ends without one."""
    seed = 999
    ahead = [stage.engine.submit(replace(other, priority=1)) for other in stage.others]
    busy = stage.engine.submit(replace(stage.victims["builtin"], num_frames=480, priority=1))
    queued = stage.engine.submit(replace(stage.victims["wan"], seed=seed))
    queued.cancel()
    assert isinstance(ended(queued), Cancelled)
    assert not any(isinstance(event, Started) for event in queued.events(WAIT_S))
    busy.cancel()
    assert isinstance(ended(busy), Cancelled)
    outputs = [handle.result(WAIT_S) for handle in ahead]
    assert all(equal(a, b) for a, b in zip(outputs, stage.right_others, strict=True))
    assert_nothing_held(stage.start, stage.residents.values(), [*ahead, busy, queued])


def test_cancel_after_the_end_changes_nothing(stage: Stage) -> None:
    handle = stage.engine.submit(stage.others[0])
    assert isinstance(ended(handle), Finished)
    handle.cancel()
    assert isinstance(ended(handle), Finished)
    assert equal(handle.result(WAIT_S), stage.right_others[0])


def test_a_consumer_that_raises_hurts_nobody_but_itself(stage: Stage) -> None:
    handle = stage.engine.submit(stage.others[0])

    def consume() -> None:
        for event in handle.events(WAIT_S):
            if isinstance(event, Started):
                raise LookupError("the display is gone")

    with pytest.raises(LookupError):
        consume()
    assert equal(handle.result(WAIT_S), stage.right_others[0])
    assert_nothing_held(stage.start, stage.residents.values(), [handle])
