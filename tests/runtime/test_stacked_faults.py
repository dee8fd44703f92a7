"""What goes wrong inside a stacked call stays with whose it is, and the engine lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from ostinato.api import Engine
from ostinato.errors import InternalError, InvalidPlan, NonFinite
from ostinato.models.builtin.card import open_builtin
from ostinato.models.builtin.components import BuiltinTransformer
from ostinato.request import Advice, Failed, Finished
from ostinato.runtime import Handle, ResidentModel, Stacking
from support.faults import WAIT_S, Holdings, assert_nothing_held, ended, equal
from support.requests import request

Stack = Callable[[Sequence[Mapping[str, object]]], Sequence[Mapping[str, object]]]
SEEDS = (1, 2, 3)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(max_batch=4, stacking=Stacking.ALWAYS) as engine:
        yield engine


@pytest.fixture
def resident(engine: Engine, tiny_builtin_folder: Path) -> ResidentModel:
    return engine.add(open_builtin(tiny_builtin_folder))


def replace_stack(resident: ResidentModel, change: Callable[[Stack], Stack]) -> list[int]:
    """Put a stack in the place of the denoiser's own; returns the sizes of those that ran."""
    found, sizes = resident.component("transformer"), list[int]()
    op_stacked = found.op_stacked  # type: ignore[attr-defined]

    def replaced(name: str, rules: object) -> Stack:
        stack = op_stacked(name, rules)
        if name != "predict":
            return stack

        def counted(inputs: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
            sizes.append(len(inputs))
            return change(stack)(inputs)

        return counted

    found.op_stacked = replaced  # type: ignore[attr-defined]
    return sizes


def submit_all(engine: Engine) -> list[Handle]:
    outputs = ("video", "latents")
    return [engine.submit(request(seed=seed, outputs=outputs)) for seed in SEEDS]


class Mute(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise LookupError("no words")


@pytest.mark.parametrize("error", [RuntimeError("no room"), MemoryError(), SystemExit(4), Mute()])
def test_a_stack_that_raises_is_run_one_by_one(
    engine: Engine, resident: ResidentModel, error: BaseException
) -> None:
    alone = [handle.result(WAIT_S) for handle in submit_all(engine)]

    def change(stack: Stack) -> Stack:
        def raising(inputs: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
            raise error

        return raising

    start, sizes = Holdings.now(), replace_stack(resident, change)
    handles = submit_all(engine)
    assert all(isinstance(ended(handle), Finished) for handle in handles)
    assert max(sizes) > 1, "nothing was stacked, so this run proved nothing"
    pairs = zip(handles, alone, strict=True)
    assert all(equal(handle.result(), right) for handle, right in pairs)
    advised = [handle for handle in handles if handle.result().advice]
    assert len(advised) > 1, "who was in the stack is told, once"
    for handle in advised:
        (advice,) = handle.result().advice
        assert "transformer.predict ran one by one" in advice
        assert type(error).__name__ in advice
        assert [e.message for e in handle.events() if isinstance(e, Advice)] == [advice]
    assert_nothing_held(start, [resident], handles)


def test_a_component_that_cannot_tell_what_it_stacks_fails_its_requests_alone(
    engine: Engine, resident: ResidentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(BuiltinTransformer):
        @property
        def stacked_ops(self) -> Mapping[str, frozenset[str]]:
            raise OSError("no table")

    right = engine.submit(request(outputs=("video", "latents"))).result(WAIT_S)
    start, transformer = Holdings.now(), resident.component("transformer")
    with monkeypatch.context() as patched:
        patched.setattr(transformer, "__class__", Faulty)
        handles = submit_all(engine)
        ends = [ended(handle) for handle in handles]
        assert all(isinstance(end, Failed) and "no table" in str(end.error) for end in ends)
        assert_nothing_held(start, [resident], handles)
    again = engine.submit(request(outputs=("video", "latents"))).result(WAIT_S)
    assert equal(again, right), "the engine lives"


def test_nan_in_one_share_of_a_stack_fails_that_request_alone(
    engine: Engine, resident: ResidentModel
) -> None:
    alone = [handle.result(WAIT_S) for handle in submit_all(engine)]

    def change(stack: Stack) -> Stack:
        def spoilt(inputs: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
            first, *rest = stack(inputs)
            prediction = first["prediction"]
            assert isinstance(prediction, torch.Tensor)
            return [{"prediction": prediction * float("nan")}, *rest] if rest else [first]

        return spoilt

    start, sizes = Holdings.now(), replace_stack(resident, change)
    handles = submit_all(engine)
    ends = [ended(handle) for handle in handles]
    assert max(sizes) > 1, "nothing was stacked, so this run proved nothing"
    failed = [end for end in ends if isinstance(end, Failed)]
    assert failed
    assert all(isinstance(end.error, NonFinite) for end in failed)
    for handle, end, right in zip(handles, ends, alone, strict=True):
        assert isinstance(end, Failed) or equal(handle.result(), right)
    assert any(isinstance(end, Finished) for end in ends), "the last one runs by itself"
    assert_nothing_held(start, [resident], handles)


def test_a_probe_that_raises_fails_those_requests_and_not_the_engine(
    engine: Engine, resident: ResidentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("no processor")

    with monkeypatch.context() as patched:
        patched.setattr("ostinato.runtime.turns.probe_batch_rules", broken)
        start, handles = Holdings.now(), submit_all(engine)
        ends = [ended(handle) for handle in handles]
        failed = [end for end in ends if isinstance(end, Failed)]
        assert len(failed) > 1
        assert all(isinstance(end.error, InternalError) for end in failed)
        assert all("in broken" in end.error.__notes__[0] for end in failed), "each has the trace"
        assert_nothing_held(start, [resident], handles)
    assert all(isinstance(ended(handle), Finished) for handle in submit_all(engine))


def test_a_stack_that_failed_once_is_tried_again(
    engine: Engine, resident: ResidentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike one that the rules of the processor forbid."""
    transformer = resident.component("transformer")
    op_stacked, failures = transformer.op_stacked, iter([MemoryError("no room")])  # type: ignore[attr-defined]

    def failing_once(name: str, rules: object) -> object:
        for failure in failures:
            raise failure
        return op_stacked(name, rules)

    monkeypatch.setattr(transformer, "op_stacked", failing_once)
    outputs = engine.run([request(seed=seed, num_frames=24) for seed in range(3)])
    assert max(output.provenance.stacked_steps for output in outputs) > 0


def test_a_stack_that_always_fails_is_given_up(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def op_stacked(name: str, rules: object) -> object:
        tried.append(name)
        raise MemoryError("no room")

    num_steps = 12
    asked = [request(seed=seed, num_inference_steps=num_steps) for seed in range(3)]
    with Engine(max_batch=4) as engine:
        transformer = engine.add(open_builtin(tiny_builtin_folder)).component("transformer")
        monkeypatch.setattr(transformer, "op_stacked", op_stacked)
        outputs = engine.run(asked)
    assert all(output.provenance.stacked_steps == 0 for output in outputs)
    # Three times a size of each of the ops that stack: predict, store.
    assert 0 < len(tried) <= 3 * 2 * 2 < num_steps * 3


def test_plans_that_turn_out_unlike_run_one_by_one(
    engine: Engine, resident: ResidentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [handle.result(WAIT_S) for handle in submit_all(engine)]

    def unlike(*_: object) -> object:
        raise InvalidPlan("plans that are stacked must have one and the same batch key")

    monkeypatch.setattr("ostinato.runtime.turns.execute_together", unlike)
    handles = submit_all(engine)
    found = [handle.result(WAIT_S) for handle in handles]
    assert all(map(equal, found, alone))
    assert any("one and the same batch key" in str(output.advice) for output in found)
