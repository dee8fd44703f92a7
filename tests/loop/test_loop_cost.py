"""Pricing: one key for what takes equally long, another for what does not, and sums of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from ostinato.errors import InvalidPlan
from ostinato.loop.contract import Component
from ostinato.loop.cost import (
    CallClock,
    advance_work,
    call_key,
    call_work,
    observe,
    plan_work,
    predict,
    predict_plan,
    predict_stack,
    stack_work,
)
from ostinato.loop.execute import execute
from ostinato.memory import KVPool
from ostinato.work import (
    CacheRef,
    ComponentCall,
    CostModel,
    OpWork,
    OutputOf,
    PageId,
    PageRef,
    WorkPlan,
    WorkUnitKind,
)

LATENTS = torch.zeros(1, 4, 2, 3, 3)


class Doubler:
    """A real op without an estimate."""

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        return lambda latents, **others: {"out": 2 * latents}


class Counted(Doubler):
    """A component whose work is the elements of its latents."""

    def estimate(self, op: str, inputs: Mapping[str, object]) -> OpWork:
        latents = inputs["latents"]
        assert isinstance(latents, torch.Tensor)
        return OpWork(flops=1e6 * latents.numel(), weight_bytes=1e6, activation_bytes=8.0)


def resident(name: str) -> Component:
    return {"plain": Doubler(), "counted": Counted()}[name]


def call(call_id: str = "a", component: str = "counted", **inputs: object) -> ComponentCall:
    given = {"latents": LATENTS, **inputs}
    return ComponentCall(call_id=call_id, component=component, op="predict", inputs=given)


def plan(*calls: ComponentCall) -> WorkPlan:
    return WorkPlan(kind=WorkUnitKind.DIFFUSION_STEP, calls=calls or (call(),))


def pages(count: int) -> CacheRef:
    return CacheRef(pages=tuple(PageRef(page=PageId(i), version=i) for i in range(count)))


def form(**inputs: object) -> str:
    return call_key("m", call(**inputs)).form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3)),
        ("a red circle", "a blue plane"),
        (pages(2), CacheRef(pages=tuple(reversed(pages(2).pages)))),
        (torch.tensor(999.0), torch.tensor(1.0)),
        (OutputOf(call="x", name="out"), OutputOf(call="y", name="out")),
    ],
)
def test_what_takes_equally_long_has_one_key(one: object, other: object) -> None:
    assert form(value=one) == form(value=other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        ("a red circle", "a red circle " * 9),
        (pages(2), pages(3)),
        (None, pages(1)),
        (1, 2),
        (1, True),
        ((torch.zeros(1),) * 2, (torch.zeros(1),) * 3),
        ((torch.zeros(1), torch.zeros(2)), (torch.zeros(2), torch.zeros(1))),
    ],
)
def test_what_may_take_longer_has_another(one: object, other: object) -> None:
    assert form(value=one) != form(value=other)


def test_a_key_names_model_component_op_and_items() -> None:
    key = call_key("tiny", call(component="plain"), 3)
    assert key[:2] == ("tiny/plain", "predict")
    assert key.items == 3
    assert key.form == "latents=float32[1,4,2,3,3]"


def test_equal_items_of_a_tuple_are_written_once() -> None:
    layers = tuple((torch.zeros(1, 2), torch.zeros(1, 2)) for _ in range(30))
    assert form(layers=layers).endswith("layers=(30*(2*float32[1,2]))")


def test_a_component_without_an_estimate_is_taken_by_its_elements() -> None:
    one, two = call(component="plain"), call(component="plain", more=(LATENTS, None))
    assert call_work(one, Doubler()).flops > 0
    assert call_work(two, Doubler()).flops == 2 * call_work(one, Doubler()).flops
    assert call_work(call(), Counted()).flops == 1e6 * LATENTS.numel()


def test_a_plan_is_its_calls_in_order_then_advance() -> None:
    second = call("b", latents=OutputOf(call="a", name="out"), component="plain")
    entries = plan_work(plan(second, call("a")), resident, model_id="m", node="denoise")
    assert [(e.key.component, e.key.op) for e in entries] == [
        ("m/counted", "predict"),
        ("m/plain", "predict"),
        ("m/denoise", "advance predict"),
    ]
    assert entries[-1].work.flops > 0


def test_advance_grows_with_the_latents_and_is_told_apart_by_op_and_calls() -> None:
    def entry(*calls: ComponentCall) -> tuple[object, float]:
        found = advance_work(calls, model_id="m", node="n")
        return found.key, found.work.flops

    large = call(latents=LATENTS.repeat(2, 1, 1, 1, 1))
    assert entry(large)[1] == 2 * entry(call())[1]
    store = ComponentCall(call_id="a", component="c", op="store", inputs={"latents": LATENTS})
    text = ComponentCall(call_id="a", component="c", op="encode", inputs={"text": "a"})
    keys = [entry(*calls)[0] for calls in ([call()], [large], [call(), call("b")], [store], [text])]
    assert len(set(keys)) == len(keys)
    assert entry(text)[1] == 0


def test_a_stack_is_one_entry_and_an_advance_for_each_plan() -> None:
    pair = plan(call("a"), call("b"))
    stack, *advances = stack_work([pair, pair], resident, model_id="m", node="n")
    assert stack.key == call_key("m", call(), 4)
    assert stack.work.resembles(call_work(call(), Counted()).times(4))
    assert advances == [advance_work(pair.calls, model_id="m", node="n")] * 2


def test_a_stack_of_unlike_calls_has_a_key_of_its_own_whatever_their_order() -> None:
    short, long = plan(call(context=pages(1))), plan(call(context=pages(2)))
    one, other, alike = (
        stack_work(plans, resident, model_id="m", node="n")[0].key
        for plans in ([short, long], [long, short], [short, short])
    )
    assert one == other != alike
    with pytest.raises(InvalidPlan, match="of one op"):
        stack_work([plan(call(component="plain")), short], resident, model_id="m", node="n")


def test_predictions_are_what_was_observed_of_the_same_entries() -> None:
    model, pair = CostModel(), plan(call("a"), call("b"))
    alone = plan_work(pair, resident, model_id="m", node="n")
    stack = stack_work([pair] * 3, resident, model_id="m", node="n")
    for _ in range(20):
        observe(model, alone, [0.5, 0.5, 0.25])
        observe(model, stack[:1], [2.0])
    assert predict(model, alone) == pytest.approx(1.25)
    assert predict_plan(model, pair, resident, model_id="m", node="n") == pytest.approx(1.25)
    together = predict_stack(model, pair, resident, 6, model_id="m", node="n")
    assert together == pytest.approx(2.0 + 3 * 0.25)


def test_seconds_must_be_as_many_as_entries() -> None:
    entries = plan_work(plan(), resident, model_id="m", node="n")
    with pytest.raises(ValueError, match="zip"):
        observe(CostModel(), entries, [1.0])


def test_the_clock_times_each_call_and_lets_another_look() -> None:
    seen: list[str] = []

    class Other:
        def started(self, call: ComponentCall, inputs: Mapping[str, object]) -> None:
            seen.append(f"started {call.call_id}")

        def finished(self, call: ComponentCall, outputs: Mapping[str, object]) -> None:
            seen.append(f"finished {call.call_id}")

    clock = CallClock(beside=Other())
    execute(plan(call("a"), call("b")), resident, KVPool(), watch=clock)
    assert len(clock.seconds) == 2
    assert min(clock.seconds) > 0
    assert seen == ["started a", "finished a", "started b", "finished b"]
