"""A request that is alone goes on between decisions, and is charged for all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ostinato.api import Engine
from ostinato.card import ModelSource
from ostinato.errors import InternalError
from ostinato.models.registry import open_model
from ostinato.request import Progress, Request
from ostinato.runtime import Stacking
from ostinato.runtime.scheduler import Around, FairShare, FifoRequest, Rank, Ready, Snapshot
from ostinato.runtime.witness import Bystander
from ostinato.work import CostModel
from support.faults import WAIT_S

STEPS = 60  # more than it takes for a unit to be well known, and some more


class Asked(Around):
    """Fair share that keeps what it was shown of each decision."""

    def __init__(self) -> None:
        super().__init__(FairShare())
        self.seen: list[tuple[Ready, Snapshot]] = []

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        self.seen.append((ready, snapshot))
        return super().rank(ready, snapshot)


@pytest.fixture
def source(tiny_wan_folder: Callable[[str], Path]) -> ModelSource:
    return open_model(tiny_wan_folder("FlowMatchEulerDiscreteScheduler"))


@pytest.fixture
def request_of(source: ModelSource) -> Request:
    return Request.build(
        model=source.card.model_id,
        task="text_to_video",
        prompt="a red circle",
        outputs=("latents",),
        num_inference_steps=STEPS,
        guidance_scale=1.0,
        height=16,
        width=16,
        num_frames=1,
    )


@contextmanager
def engine_of(
    source: ModelSource, witness: Bystander | None = None
) -> Iterator[tuple[Engine, Asked]]:
    policy = Asked()
    with Engine(policy, witness=witness) as engine:
        engine.add(source)
        yield engine, policy


def test_one_that_is_alone_is_seldom_decided_about_and_wholly_charged(
    source: ModelSource, request_of: Request
) -> None:
    with engine_of(source) as (engine, policy):
        output = engine.submit(request_of).result(WAIT_S)
        ticks = {snapshot.tick for _, snapshot in policy.seen}
        assert 20 < len(ticks) < STEPS - 20
        last, snapshot = policy.seen[-1]
        assert snapshot.tenants["default"].attained_s == pytest.approx(last.attained_s)
        assert 0 < last.attained_s < output.provenance.device_s
        policy.seen.clear()
        engine.submit(request_of).result(WAIT_S)
        _, after = policy.seen[0]
    assert after.tenants["default"].attained_s == pytest.approx(output.provenance.device_s)


def test_who_arrives_meanwhile_is_decided_about_after_the_unit(
    source: ModelSource, request_of: Request
) -> None:
    with engine_of(source) as (engine, policy):
        engine.submit(request_of).result(WAIT_S)
        policy.seen.clear()
        long = engine.submit(replace(request_of, num_inference_steps=400))
        next(event for event in long.events(WAIT_S) if isinstance(event, Progress))
        engine.submit(replace(request_of, num_inference_steps=2)).result(WAIT_S)
        long.cancel()
    shown = [snapshot for _, snapshot in policy.seen if len(snapshot.ready) == 2]
    assert shown, "the second was never seen beside the first"
    (first,) = [ready for ready in shown[0].ready if ready.request_id == long.request_id]
    assert shown[0].tenants["default"].attained_s >= first.attained_s > 0


@pytest.mark.parametrize("num_steps", [18, 19, 20, 21])
def test_what_goes_on_is_like_what_was_decided(
    source: ModelSource, request_of: Request, num_steps: int
) -> None:
    """Branches of guidance that share a forward, then a decoding that has no company."""
    clip = replace(
        request_of,
        outputs=("video", "latents"),
        num_inference_steps=num_steps,
        guidance_scale=4.0,
        height=64,
        width=64,
    )
    costs = CostModel()
    with Engine(max_batch=1) as engine:
        engine.add(source)
        expected = engine.submit(clip).result(WAIT_S)
    with Engine(FifoRequest(), stacking=Stacking.ALWAYS, costs=costs) as engine:
        engine.add(source)
        found = [engine.submit(clip).result(WAIT_S) for _ in range(2)]
    for output in found:
        assert torch.equal(output.latents, expected.latents)
        assert (output.video.frames == expected.video.frames).all()
    (decoded,) = [
        each
        for each in costs.measured()
        if each.key[:2] == (f"{source.card.model_id}/decode", "unit")
    ]
    assert len(decoded.seconds) == 2, "each decoding was decided and learnt"


def test_one_with_a_deadline_is_decided_about_each_time(
    source: ModelSource, request_of: Request
) -> None:
    with engine_of(source) as (engine, policy):
        engine.submit(request_of).result(WAIT_S)
        policy.seen.clear()
        engine.submit(replace(request_of, deadline_s=WAIT_S)).result(WAIT_S)
    assert len({snapshot.tick for _, snapshot in policy.seen}) > STEPS


def test_a_witness_sees_every_unit(source: ModelSource, request_of: Request) -> None:
    with engine_of(source, Bystander()) as (engine, policy):
        engine.submit(request_of).result(WAIT_S)
    assert len({snapshot.tick for _, snapshot in policy.seen}) > STEPS


@pytest.mark.parametrize("max_batch", [1, 4])
def test_a_failed_unit_is_charged(
    source: ModelSource, request_of: Request, max_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whoever fails late would always have had least."""

    def slow_fault(*_: object, **__: object) -> object:
        time.sleep(0.2)
        raise RuntimeError("late")

    policy = Asked()
    with Engine(policy, max_batch=max_batch, stacking=Stacking.ALWAYS) as engine:
        resident = engine.add(source)
        engine.submit(request_of).result(WAIT_S)
        transformer = resident.component("transformer")
        monkeypatch.setattr(transformer, "op", lambda name: slow_fault)
        monkeypatch.setattr(transformer, "op_stacked", lambda name, rules: slow_fault)
        handles = [engine.submit(replace(request_of, tenant="late", seed=i)) for i in range(2)]
        for handle in handles:
            with pytest.raises(InternalError, match="late"):
                handle.result(WAIT_S)
        monkeypatch.undo()
        engine.submit(replace(request_of, tenant="late")).result(WAIT_S)
    attained = policy.seen[-1][1].tenants["late"].attained_s
    assert attained > 0.4
