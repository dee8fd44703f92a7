"""Prices of units: what they are made of, what is learnt, what stacks of them cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ostinato.loop.batch import batch_key
from ostinato.models.builtin.card import open_builtin
from ostinato.request import GenerationSpec
from ostinato.runtime import ResidentModel, Stacking
from ostinato.runtime.priced import NextPlan
from ostinato.runtime.pricing import Pricing
from ostinato.runtime.resolve import resolve
from ostinato.runtime.scheduler import StackTable
from ostinato.runtime.signature import plan_signature
from ostinato.tasks import RequestId
from ostinato.work import ComponentCall, CostModel, WorkPlan, WorkUnitKind
from support.requests import request


@pytest.fixture
def model(tiny_builtin_folder: Path) -> ResidentModel:
    resident = ResidentModel(open_builtin(tiny_builtin_folder))
    resident.component("transformer")
    return resident


@pytest.fixture
def spec(model: ResidentModel) -> GenerationSpec:
    return resolve(model.card, request(num_frames=12), RequestId("r1"))


def plan(samples: int = 1, calls: int = 1) -> WorkPlan:
    one = [
        ComponentCall(
            call_id=f"c{index}",
            component="transformer",
            op="encode_text",
            inputs={"prompt_embeds": (torch.zeros(samples, 8, 32),)},
        )
        for index in range(calls)
    ]
    return WorkPlan(kind=WorkUnitKind.CHUNK_STEP, calls=tuple(one))


def upcoming(model: ResidentModel, spec: GenerationSpec, of: WorkPlan | None) -> NextPlan:
    return NextPlan(model, spec, "rollout", of, stackable=True, plans_left={"rollout": 5})


def test_equal_shapes_have_one_price_and_others_another(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 1)
    one, same, larger = (
        pricing.price(upcoming(model, spec, plan(samples))) for samples in (1, 1, 4)
    )
    assert one.shape is same.shape
    assert larger.shape != one.shape
    assert larger.unit.unit_s > one.unit.unit_s > 0
    assert one.unit.remaining_s >= one.unit.unit_s
    assert plan_signature(plan(1)) == plan_signature(plan(1)) != plan_signature(plan(2))


def test_what_was_learnt_is_the_price(model: ResidentModel, spec: GenerationSpec) -> None:
    pricing = Pricing(CostModel(), 1)
    for _ in range(5):
        pricing.learn(pricing.price(upcoming(model, spec, plan())), (0.5, 0.25))
    assert pricing.price(upcoming(model, spec, plan())).unit.unit_s == pytest.approx(0.75)
    assert pricing.total(model, spec, {"rollout": 4}).seconds == pytest.approx(3.0)


def test_what_was_not_measured_is_told_apart(model: ResidentModel, spec: GenerationSpec) -> None:
    pricing = Pricing(CostModel(), 1)
    first = pricing.price(upcoming(model, spec, plan())).unit
    assert first.unmeasured_s == pytest.approx(first.remaining_s)
    for _ in range(3):
        pricing.learn(pricing.price(upcoming(model, spec, plan())), (0.5, 0.25))
    assert pricing.price(upcoming(model, spec, plan())).unit.unmeasured_s == 0.0
    other = pricing.price(upcoming(model, spec, plan(samples=4))).unit
    assert other.unmeasured_s == pytest.approx(other.unit_s - 0.25)  # all but its `advance`
    seconds, unmeasured_s = pricing.total(model, spec, {"rollout": 4, "decode": 1})
    assert unmeasured_s == pytest.approx(seconds - 3.0)


def test_a_unit_of_its_node_is_learnt_from_stacks(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 4)
    one = pricing.price(upcoming(model, spec, store_plan()))
    for _ in range(5):
        pricing.learn_stack((one, one), 0.3, (0.01, 0.03))
    assert pricing.total(model, spec, {"rollout": 1}) == (pytest.approx(0.17, rel=0.07), 0.0)


def test_a_unit_is_well_known_once_its_calls_are(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 4)
    assert pricing.known(upcoming(model, spec, plan())) is None
    priced = pricing.price(upcoming(model, spec, plan()))
    assert priced.shape is not None
    assert pricing.known(upcoming(model, spec, plan())) is priced.shape
    for _ in range(16):
        assert not pricing.well_known(priced.shape, stacked=False)
        pricing.learn(priced, (0.5, 0.25))
    assert pricing.well_known(priced.shape, stacked=False)


def store_plan(frames: int = 1) -> WorkPlan:
    text_kv = tuple(type("KV", (), {"key": torch.zeros(1, 8, 2, 16)})() for _ in range(1))
    call = ComponentCall(
        call_id="c",
        component="transformer",
        op="store",
        inputs={
            "latents": torch.zeros(1, 16, frames, 8, 8),
            "first_frame": torch.zeros((), dtype=torch.int64),
            "text_kv": text_kv,
            "context": None,
        },
    )
    return WorkPlan(kind=WorkUnitKind.CACHE_IO, calls=(call,))


def test_a_table_of_stacked_costs_grows_by_less_than_its_parts(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 4)
    priced = pricing.price(upcoming(model, spec, store_plan()))
    stack = priced.unit.stack
    assert stack is not None
    assert batch_key(store_plan(), model.component) is not None
    table = pricing.stack_costs(stack)
    assert len(table.seconds) == 4
    assert list(table.seconds) == sorted(table.seconds)
    assert table.seconds[3] < 4 * table.seconds[0]
    assert table.trial == 2, "no pair was measured"
    assert pricing.stack_costs("another") == StackTable()
    pricing.forbid(stack, 2)
    assert pricing.stack_costs(stack) == StackTable()
    assert pricing.price(upcoming(model, spec, store_plan())).unit.stack is None


def test_a_size_that_is_not_allowed_leaves_the_smaller_ones(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 8)
    stack = pricing.price(upcoming(model, spec, store_plan())).unit.stack
    assert stack is not None

    def most() -> int:
        return len(pricing.stack_costs(stack).seconds)

    pricing.forbid(stack, 5)
    assert most() == 4
    for _ in range(5):  # never three in a row
        pricing.fault(stack, 3)
        pricing.fault(stack, 3)
        pricing.sound(stack)
    assert most() == 4
    for _ in range(3):
        assert most() == 4
        pricing.fault(stack, 3)
    assert most() == 2


def test_stacks_that_fail_are_asked_for_by_gates_all_the_same(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 8, Stacking.ALWAYS)
    stack = pricing.price(upcoming(model, spec, store_plan())).unit.stack
    assert stack is not None
    for _ in range(9):
        pricing.fault(stack, 3)
    assert len(pricing.stack_costs(stack).seconds) == 8
    pricing.forbid(stack, 3)
    assert len(pricing.stack_costs(stack).seconds) == 2


def test_always_stacking_expects_company_to_cost_nothing(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 4, Stacking.ALWAYS)
    stack = pricing.price(upcoming(model, spec, store_plan())).unit.stack
    assert stack is not None
    assert len(set(pricing.stack_costs(stack).seconds)) == 1


def test_a_stack_is_learnt_at_the_operations_of_its_largest_call(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 4)
    one = pricing.price(upcoming(model, spec, store_plan()))
    assert one.shape is not None
    half = one._replace(
        shape=one.shape._replace(
            entries=(
                one.shape.entries[0]._replace(
                    work=replace(
                        one.shape.entries[0].work, flops=one.shape.entries[0].work.flops / 2
                    )
                ),
                one.shape.entries[-1],
            )
        )
    )
    for _ in range(5):
        pricing.learn_stack((one, half), 0.3, (0.01, 0.01))
    key, work = one.shape.entries[0]
    # Two whole calls at the operations a second at which one and a half took 0.3 s.
    assert pricing.costs.predict(key._replace(items=2), work.times(2)) == pytest.approx(0.4)


def test_a_stack_costs_no_more_than_a_larger_one(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 4)
    priced = pricing.price(upcoming(model, spec, store_plan()))
    assert priced.shape is not None
    key, work = priced.shape.entries[0]
    for items, seconds in ((1, 0.02), (2, 0.05), (3, 0.03)):
        for _ in range(5):
            pricing.costs.observe(key._replace(items=items), work.times(items), seconds)
    stack = priced.unit.stack
    assert stack is not None
    table = pricing.stack_costs(stack).seconds
    assert list(table) == sorted(table)
    assert table[1] == table[2]
    assert table[1] - table[0] < table[0], "a pair pays again, so it is measured again"


@pytest.mark.parametrize(("pair_s", "then"), [(0.12, 4), (0.25, 0)])
def test_sizes_are_tried_until_they_are_known(
    model: ResidentModel, spec: GenerationSpec, pair_s: float, then: int
) -> None:
    pricing = Pricing(CostModel(), 4)
    priced = pricing.price(upcoming(model, spec, store_plan()))
    assert priced.shape is not None
    assert priced.unit.stack is not None
    key, work = priced.shape.entries[0]
    for items, seconds in ((1, 0.1), (2, pair_s)):
        assert {pricing.stack_costs(priced.unit.stack).trial for _ in range(8)} == {2}
        for _ in range(16):
            pricing.costs.observe(key._replace(items=items), work.times(items), seconds)
    assert pricing.stack_costs(priced.unit.stack).trial == then
    # Those that do not pay are tried once in a while, for nothing else would measure them again.
    found = [pricing.stack_costs(priced.unit.stack).trial for _ in range(8 * 128)]
    assert set(found) == ({0, 2, 4} if not then else {then})
    assert then or all(found.count(trial) == 16 for trial in (2, 4))


def test_each_key_has_its_own_turn_to_be_tried_again(
    model: ResidentModel, spec: GenerationSpec
) -> None:
    pricing = Pricing(CostModel(), 2)
    stacks: list[str] = []
    for frames in (1, 2):
        priced = pricing.price(upcoming(model, spec, store_plan(frames)))
        assert priced.shape is not None
        assert priced.unit.stack is not None
        stacks.append(priced.unit.stack)
        key, work = priced.shape.entries[0]
        for items, seconds in ((1, 0.1), (2, 0.25)):
            for _ in range(16):
                pricing.costs.observe(key._replace(items=items), work.times(items), seconds)
    tried = [[pricing.stack_costs(stack).trial for stack in stacks] for _ in range(8 * 64)]
    assert [sum(trial == 2 for trial in each) for each in zip(*tried, strict=True)] == [16, 16]


def test_a_component_without_an_estimate_has_the_price_of_its_node(
    model: ResidentModel, spec: GenerationSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(op: str, inputs: object) -> object:
        raise KeyError(op)

    monkeypatch.setattr(model.component("transformer"), "estimate", broken)
    pricing = Pricing(CostModel(), 4)
    priced = pricing.price(upcoming(model, spec, store_plan()))
    assert priced.shape is None
    assert priced.unit.stack is None
    assert priced.unit.unit_s > 0
