"""Executing a plan: references are resolved, nothing else happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from ostinato.errors import InvalidPlan, PageViolation
from ostinato.loop.driver import run_plan
from ostinato.loop.execute import commit, execute
from ostinato.memory import KVPool
from ostinato.work import (
    CacheRef,
    Commit,
    ComponentCall,
    Granularity,
    OutputOf,
    PageId,
    PageRef,
    WorkPlan,
    WorkUnitKind,
)


class Layer:
    """A network layer's worth of ops; each is a pure function of its inputs."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return an operation; raises InvalidPlan."""
        if name not in ("double", "split", "collect"):
            raise InvalidPlan(f"no op {name!r}")
        return getattr(self, name)

    def double(self, x: torch.Tensor) -> Mapping[str, object]:
        """Return 2 x."""
        self.order.append("double")
        return {"out": 2 * x, "layers": (x, x)}

    def split(self, x: torch.Tensor) -> Mapping[str, object]:
        """Return both halves as layers."""
        self.order.append("split")
        return {"out": tuple(x.chunk(2))}

    def collect(self, **inputs: object) -> Mapping[str, object]:
        """Return what came in."""
        self.order.append("collect")
        return {"out": inputs}


def call(call_id: str, op: str, **inputs: object) -> ComponentCall:
    return ComponentCall(call_id=call_id, component="layer", op=op, inputs=inputs)


def plan(*calls: ComponentCall, commits: tuple[Commit, ...] = ()) -> WorkPlan:
    return WorkPlan(kind=WorkUnitKind.DIFFUSION_STEP, calls=calls, commits=commits)


X = torch.arange(4.0)
OUT = OutputOf(call="a", name="out")


def test_calls_run_after_what_they_need_and_get_it() -> None:
    layer = Layer()
    result = execute(
        plan(call("b", "double", x=OUT), call("a", "double", x=X)), lambda _: layer, KVPool()
    )
    found = result.get("b", "out")
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, 4 * X)
    assert layer.order == ["double", "double"]


def test_references_in_a_tuple_are_resolved_and_values_are_left() -> None:
    layer = Layer()
    empty = CacheRef(pages=())
    inputs = {"mixed": (OUT, X, empty), "plain": (X, X), "scalar": 3, "none": None}
    result = execute(
        plan(call("a", "double", x=X), call("c", "collect", **inputs)), lambda _: layer, KVPool()
    )
    found = result.get("c", "out")
    assert isinstance(found, dict)
    assert torch.equal(found["mixed"][0], 2 * X)
    assert found["mixed"][1] is X
    assert found["mixed"][2] is None
    assert found["plain"] is inputs["plain"]
    assert (found["scalar"], found["none"]) == (3, None)


def test_an_output_that_is_not_given() -> None:
    missing = OutputOf(call="a", name="velocity")
    broken = plan(call("a", "double", x=X), call("b", "double", x=missing))
    with pytest.raises(InvalidPlan, match=r"'velocity' of 'a', which gives \['layers', 'out'\]"):
        execute(broken, lambda _: Layer(), KVPool())


def test_a_layer_edge_needs_layers() -> None:
    edge = OutputOf(call="a", name="out", granularity=Granularity.LAYER)
    whole = plan(call("a", "double", x=X), call("b", "collect", x=edge))
    with pytest.raises(InvalidPlan, match="layer by layer, but it is one Tensor"):
        execute(whole, lambda _: Layer(), KVPool())
    layered = plan(call("a", "split", x=X), call("b", "collect", x=edge))
    result = execute(layered, lambda _: Layer(), KVPool())
    assert isinstance(result.get("b", "out"), dict)


def test_what_a_component_does_not_know_it_says() -> None:
    with pytest.raises(InvalidPlan, match="no op 'triple'"):
        execute(plan(call("a", "triple", x=X)), lambda _: Layer(), KVPool())


def test_grad_is_recorded_when_asked_for_and_then_alone() -> None:
    x = X.clone().requires_grad_()
    recorded = execute(plan(call("a", "double", x=x)), lambda _: Layer(), KVPool(), with_grad=True)
    served = execute(plan(call("a", "double", x=x)), lambda _: Layer(), KVPool())
    for result, expected in ((recorded, True), (served, False)):
        out = result.get("a", "out")
        assert isinstance(out, torch.Tensor)
        assert out.requires_grad == expected
        assert not out.is_inference()
    with torch.no_grad():
        inside = execute(
            plan(call("a", "double", x=x)), lambda _: Layer(), KVPool(), with_grad=True
        )
        out = inside.get("a", "out")
        assert isinstance(out, torch.Tensor)
        assert out.requires_grad
        assert not torch.is_grad_enabled()


def test_a_commit_needs_layers_of_an_output_that_is_there() -> None:
    target = PageRef(page=PageId(0), version=0)
    for name, message in (("out", "is one Tensor; expected a tuple"), ("velocity", "no output")):
        entry = Commit(output=OutputOf(call="a", name=name), target=target)
        whole = plan(call("a", "double", x=X), commits=(entry,))
        with pytest.raises(InvalidPlan, match=message):
            run_plan(whole, lambda _: Layer(), KVPool())


def test_executing_writes_nothing() -> None:
    """Only commit does; here to a page that no ring has, which is refused then."""
    entry = Commit(
        output=OutputOf(call="a", name="layers"), target=PageRef(page=PageId(0), version=0)
    )
    whole = plan(call("a", "double", x=X), commits=(entry,))
    result = execute(whole, lambda _: Layer(), KVPool())
    with pytest.raises(PageViolation):
        commit(whole, result, KVPool())
