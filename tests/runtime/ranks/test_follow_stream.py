"""What a follower refuses, notices and says."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.api import Engine
from ostinato.card import ModelSource
from ostinato.errors import (
    BadInput,
    DeadlineExceeded,
    InternalError,
    InvalidMessage,
    RankLost,
    UnknownModel,
)
from ostinato.models.builtin.card import open_builtin
from ostinato.runtime import Batching, Handle, Stacking
from ostinato.runtime.ranks import follow
from ostinato.runtime.ranks.follower import _Follower
from ostinato.runtime.ranks.messages import Alive, Arrived, Ended, Stopped, decode, encode
from ostinato.runtime.scheduler import Outcome
from support.faults import WAIT_S
from support.ranks import QueueChannel
from support.requests import request

Pool = tuple[Engine, Future[None], list[Handle]]


@pytest.fixture
def source(tiny_builtin_folder: Path) -> ModelSource:
    return open_builtin(tiny_builtin_folder)


@contextmanager
def pool(
    channel: QueueChannel, here: ModelSource, there: Sequence[ModelSource], **options: Any
) -> Iterator[Pool]:
    """Run an engine that leads and a thread that follows."""
    ended: list[Handle] = []
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow, channel, there, on_end=ended.append)
        with Engine(channel=channel, **options) as engine:
            engine.add(here)
            yield engine, following, ended


def test_a_follower_ends_what_rank_0_ends_and_makes_the_same(source: ModelSource) -> None:
    asked = request(outputs=("latents",))
    with pool(QueueChannel(), source, [source]) as (engine, following, ended):
        made = engine.submit(asked).result(WAIT_S)
        late = engine.submit(replace(asked, deadline_s=1e-6))
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_S)
    following.result(WAIT_S)
    first, second = ended
    assert torch.equal(first.result().latents, made.latents)
    with pytest.raises(DeadlineExceeded, match="passed its deadline"):
        second.result()


@pytest.mark.parametrize("batching", list(Batching))
def test_a_follower_holds_stacks_to_what_rank_0_does(
    source: ModelSource, batching: Batching
) -> None:
    options = {"max_batch": 4, "stacking": Stacking.ALWAYS, "batching": batching}
    base = request(outputs=("latents",), num_inference_steps=4)
    with pool(QueueChannel(), source, [source], **options) as (engine, following, ended):
        made = engine.run([replace(base, seed=seed) for seed in range(4)])
    following.result(WAIT_S)
    expected = {output.provenance.spec.seed: output for output in made}
    assert len(ended) == len(made)
    for handle in ended:
        here, there = expected[handle.spec.seed], handle.result()
        assert torch.equal(here.latents, there.latents)
        assert there.provenance.fast_steps == here.provenance.fast_steps
        assert there.provenance.stacked_steps == here.provenance.stacked_steps
    steps = sum(output.provenance.fast_steps for output in made)
    assert (steps > 0) is (batching is Batching.FAST)


def test_closing_cancels_what_runs_on_every_rank(source: ModelSource) -> None:
    with pool(QueueChannel(), source, [source]) as (engine, following, ended):
        handle = engine.submit(request(num_inference_steps=50))
        next(iter(handle.events(WAIT_S)))
    following.result(WAIT_S)
    assert [each.spec for each in ended] == [handle.spec]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda source: [], UnknownModel),
        (lambda s: [replace(s, card=replace(s.card, provenance="another"))], BadInput),
    ],
)
def test_another_set_of_models_is_refused_at_the_start(
    source: ModelSource,
    change: Callable[[ModelSource], Sequence[ModelSource]],
    error: type[Exception],
) -> None:
    with pool(QueueChannel(), source, change(source)) as (engine, following, ended):
        handle = engine.submit(request())
        with pytest.raises(RankLost, match="give every rank the same sources"):
            handle.result(WAIT_S)
    with pytest.raises(error, match="same sources"):
        following.result(WAIT_S)
    assert ended == []


def test_a_follower_that_fails_says_so(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(_Follower, "_take", broken)
    with (
        pool(QueueChannel(), source, [source]) as (engine, following, _),
        pytest.raises(RankLost, match="a follower has stopped: a follower stopped: OSError"),
    ):
        engine.submit(request(num_inference_steps=50)).result(WAIT_S)
    with pytest.raises(InternalError, match="no memory"):
        following.result(WAIT_S)


class Deserted(QueueChannel):
    """Rank 0, and the store with it, is gone after some messages."""

    def __init__(self, num_messages: int) -> None:
        super().__init__()
        self.left = num_messages

    def receive(self) -> bytes:
        data = super().receive()
        self.left -= not isinstance(decode(data), Alive)
        if self.left < 0:
            raise RankLost("rank 0 is gone")
        return data

    def answer(self, data: bytes) -> None:
        if self.left < 0:
            raise RankLost("the store is gone")
        super().answer(data)


def test_a_follower_whose_leader_is_gone_fails_what_it_has(source: ModelSource) -> None:
    with pool(Deserted(5), source, [source]) as (engine, following, ended):
        engine.submit(request(num_inference_steps=50))
        with pytest.raises(RankLost, match="rank 0 is gone"):
            following.result(WAIT_S)
    (handle,) = ended
    with pytest.raises(RankLost, match="rank 0 is gone"):
        handle.result()
    assert handle.num_held == 0


def test_a_follower_at_a_long_step_says_at_once_whether_it_has_a_model(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_answered, answer, take = threading.Event(), QueueChannel.answer, _Follower._take
    num_answers = itertools.count(1)

    def counted(self: QueueChannel, data: bytes) -> None:
        answer(self, data)
        if next(num_answers) == 2:
            both_answered.set()

    def taking_long(self: _Follower, message: Arrived) -> None:
        both_answered.wait(WAIT_S)
        take(self, message)

    monkeypatch.setattr(QueueChannel, "answer", counted)
    monkeypatch.setattr(_Follower, "_take", taking_long)
    other = replace(source, card=source.card.derive(model_id="other"))
    with pool(QueueChannel(), source, [source, other]) as (engine, following, ended):
        engine.add(other)
        for handle in [engine.submit(request(model=name)) for name in ("builtin", "other")]:
            handle.result(WAIT_S)
    following.result(WAIT_S)
    assert len(ended) == 2


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED])
def test_a_unit_that_comes_out_otherwise_ends_the_follower(
    source: ModelSource, outcome: Outcome
) -> None:
    channel = QueueChannel()
    channel.publish(encode(Ended(request_id="r1", outcome=outcome)))
    with pytest.raises(RankLost, match=f"r1 is {outcome.value} on rank 0 and running here"):
        follow(channel, [source])


def test_a_quiet_leader_is_told_from_a_dead_one(source: ModelSource) -> None:
    channel = QueueChannel(silence_s=0.5)
    with pool(channel, source, [source]) as (_, following, _):
        time.sleep(1.5)
        assert not following.done()
    following.result(WAIT_S)
    assert sum(isinstance(decode(data), Alive) for data in channel.published) >= 3
    with pytest.raises(RankLost, match="silent"):
        follow(channel, [source])


def test_what_is_no_message_is_refused(source: ModelSource) -> None:
    channel = QueueChannel()
    channel.publish(encode(Stopped(request_id="r1", error=None)) + b"more")
    with pytest.raises(InvalidMessage, match="does not decode"):
        follow(channel, [source])
