"""Stacking: equal calls share a forward, each plan gets its own share, faults stay alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from ostinato.backend.batch_rules import BatchRules
from ostinato.errors import InvalidPlan
from ostinato.loop.batch import batch_key, execute_together
from ostinato.memory import KVPool
from ostinato.work import ComponentCall, OutputOf, WorkPlan, WorkUnitKind

RULES = BatchRules(linear_rows=1, activation_multiple=1, attention=True, norms=True)


class Doubler:
    """Doubles; stacks `double` with a free `scale`, and counts what it ran."""

    stacked_ops: Mapping[str, frozenset[str]] = {"double": frozenset({"scale"})}

    def __init__(self) -> None:
        self.stacks: list[int] = []
        self.alone = 0

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return `double`, whatever the name."""
        return self.double

    def double(self, x: torch.Tensor, scale: torch.Tensor, **rest: object) -> Mapping[str, object]:
        """Return 2 x scale; raises for a negative scale."""
        self.alone += 1
        if float(scale) < 0:
            raise RuntimeError(f"scale {float(scale)}")
        return {"out": 2 * x * scale}

    def op_stacked(
        self, name: str, rules: BatchRules
    ) -> Callable[[Sequence[Mapping[str, object]]], Sequence[Mapping[str, object]]]:
        """Return a stack that fails as a whole when any member would."""
        assert rules is RULES

        def run(items: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
            self.stacks.append(len(items))
            scales = [item["scale"] for item in items]
            if any(float(scale) < 0 for scale in scales):  # type: ignore[arg-type]
                raise RuntimeError("a member is wrong")
            return [{"out": 2 * item["x"] * item["scale"]} for item in items]  # type: ignore[operator]

        return run


class Plain:
    """Stacks nothing."""

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return an op that gives nothing."""
        return lambda **_: {}


def plan(*calls: ComponentCall) -> WorkPlan:
    return WorkPlan(kind=WorkUnitKind.DIFFUSION_STEP, calls=calls)


def call(call_id: str = "a", op: str = "double", **inputs: object) -> ComponentCall:
    return ComponentCall(call_id=call_id, component="c", op=op, inputs=inputs)


def double(value: float, scale: float = 1.0, **more: object) -> WorkPlan:
    return plan(call(x=torch.full((2,), value), scale=torch.tensor(scale), **more))


def test_plans_of_one_key_run_as_one_stack() -> None:
    doubler = Doubler()
    plans = [double(1.0), double(2.0, 3.0), double(3.0)]
    shares = execute_together(plans, lambda _: doubler, KVPool(), RULES)
    assert doubler.stacks == [3]
    assert doubler.alone == 0
    assert all(share.stacked for share in shares)
    results = [share.result for share in shares]
    assert all(r is not None for r in results)
    assert [float(r.get("a", "out")[0]) for r in results if r] == [2.0, 12.0, 6.0]


def test_the_branches_of_a_plan_join_the_stack() -> None:
    doubler = Doubler()
    branches = plan(
        call("cond", x=torch.ones(2), scale=torch.tensor(1.0)),
        call("uncond", x=torch.ones(2), scale=torch.tensor(5.0)),
    )
    guided, plain = execute_together([branches, double(1.0)], lambda _: doubler, KVPool(), RULES)
    assert doubler.stacks == [3]
    assert guided.result is not None
    assert plain.result is not None
    assert float(guided.result.get("uncond", "out")[0]) == 10.0
    assert list(plain.result.outputs) == ["a"]


@pytest.mark.parametrize(
    "other",
    [
        plan(call(x=torch.ones(3), scale=torch.tensor(1.0))),
        plan(call(x=torch.ones(2).double(), scale=torch.tensor(1.0))),
        plan(call(op="triple", x=torch.ones(2), scale=torch.tensor(1.0))),
        double(1.0, tile=4),
        plan(call(x=(torch.ones(2),), scale=torch.tensor(1.0))),
        plan(
            call("a", x=torch.ones(2), scale=torch.tensor(1.0)),
            call("b", x=OutputOf(call="a", name="out"), scale=torch.tensor(1.0)),
        ),
    ],
    ids=["shape", "dtype", "op", "scalar", "structure", "dependent"],
)
def test_what_differs_is_not_stacked(other: WorkPlan) -> None:
    doubler = Doubler()
    key = batch_key(double(1.0), lambda _: doubler)
    assert key is not None
    assert batch_key(other, lambda _: doubler) != key
    with pytest.raises(InvalidPlan, match="one and the same batch key"):
        execute_together([double(1.0), other], lambda _: doubler, KVPool(), RULES)
    assert doubler.stacks == []


def test_scalars_are_part_of_the_key() -> None:
    doubler = Doubler()
    same = [batch_key(double(v, tile=3), lambda _: doubler) for v in (1.0, 2.0)]
    assert same[0] == same[1] != batch_key(double(1.0, tile=3.5), lambda _: doubler)
    assert batch_key(double(1.0, tile=1), lambda _: doubler) != batch_key(
        double(1.0, tile=True), lambda _: doubler
    )


def test_a_component_without_stacks_has_no_key() -> None:
    assert batch_key(double(1.0), lambda _: Plain()) is None


def test_a_faulty_member_fails_alone() -> None:
    doubler = Doubler()
    plans = [double(1.0), double(1.0, -1.0), double(2.0)]
    shares = execute_together(plans, lambda _: doubler, KVPool(), RULES)
    assert [share.error is None for share in shares] == [True, False, True]
    assert not any(share.stacked for share in shares)
    assert doubler.alone == 3
    assert shares[2].result is not None
    assert float(shares[2].result.get("a", "out")[0]) == 4.0
    assert str(shares[1].error) == "scale -1.0"
    assert shares[1].error is not None
    assert shares[1].error.__context__ is None, "what the others met is not of this plan"
    assert all(share.stack_error is None for share in shares), "the fault has its owner"


def test_a_stack_that_fails_by_itself_is_told() -> None:
    doubler = Doubler()

    def broken(name: str, rules: BatchRules) -> object:
        raise RuntimeError("no room")

    doubler.op_stacked = broken  # type: ignore[assignment,method-assign]
    shares = execute_together([double(1.0)] * 2, lambda _: doubler, KVPool(), RULES)
    assert [share.error for share in shares] == [None, None]
    assert [str(share.stack_error) for share in shares] == ["no room", "no room"]
    assert all(share.result is not None and not share.stacked for share in shares)


def test_a_stack_that_the_rules_forbid_runs_one_by_one_and_says_so() -> None:
    doubler = Doubler()
    doubler.op_stacked = lambda name, rules: lambda items: None  # type: ignore[assignment,method-assign]
    shares = execute_together([double(1.0), double(2.0)], lambda _: doubler, KVPool(), RULES)
    assert doubler.alone == 2
    assert not any(share.stacked for share in shares)
    assert [float(s.result.get("a", "out")[0]) for s in shares if s.result] == [2.0, 4.0]


@pytest.mark.parametrize("lost", [1, -1])
def test_a_stack_of_another_length_is_a_fault(lost: int) -> None:
    doubler = Doubler()

    def op_stacked(name: str, rules: BatchRules) -> object:
        return lambda items: [{"out": torch.zeros(2)}] * (len(items) - lost)

    doubler.op_stacked = op_stacked  # type: ignore[assignment,method-assign]
    shares = execute_together([double(1.0), double(2.0)], lambda _: doubler, KVPool(), RULES)
    assert all("argument 2 is" in str(share.stack_error) for share in shares)
    assert [float(s.result.get("a", "out")[0]) for s in shares if s.result] == [2.0, 4.0]


def test_no_graph_is_kept() -> None:
    doubler = Doubler()
    weight = torch.ones(2, requires_grad=True)
    stacked = plan(call(x=weight, scale=torch.tensor(1.0)))
    shares = execute_together([stacked, stacked], lambda _: doubler, KVPool(), RULES)
    assert shares[0].result is not None
    assert not shares[0].result.get("a", "out").requires_grad  # type: ignore[attr-defined]
