"""Plans: calls form a DAG, references are resolved by name, order is as declared."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import InvalidPlan
from ostinato.work import (
    CacheRef,
    Commit,
    ComponentCall,
    Granularity,
    OutputOf,
    PageId,
    PageRef,
    WorkPlan,
    WorkResult,
    WorkUnitKind,
)


def call(name: str, *needs: str, **inputs: object) -> ComponentCall:
    edges = {f"from_{need}": OutputOf(call=need, name="out") for need in needs}
    return ComponentCall(call_id=name, component="c", op="f", inputs={**inputs, **edges})


def plan(*calls: ComponentCall, commits: tuple[Commit, ...] = ()) -> WorkPlan:
    return WorkPlan(kind=WorkUnitKind.DIFFUSION_STEP, calls=calls, commits=commits)


def order(*calls: ComponentCall) -> list[str]:
    return [c.call_id for c in plan(*calls).ordered()]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """A DAG: each call needs some of those before it. And an order in which it is declared."""
    count = draw(st.integers(0, 8))
    needs = [
        (i, sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [])
        for i in range(count)
    ]
    return needs, draw(st.permutations(range(count)))


@given(graphs())
def test_any_dag_in_any_declared_order(
    graph: tuple[list[tuple[int, list[int]]], list[int]],
) -> None:
    needs, declared = graph
    calls = [call(str(i), *map(str, needs[i][1])) for i in declared]
    found = [int(name) for name in order(*calls)]
    assert sorted(found) == sorted(declared)
    for i, before in needs:
        assert all(found.index(other) < found.index(i) for other in before)
    assert order(*[calls[declared.index(i)] for i in found]) == [str(i) for i in found]


@given(graphs())
def test_a_cycle_is_found_wherever_it_is(
    graph: tuple[list[tuple[int, list[int]]], list[int]],
) -> None:
    needs, declared = graph
    calls = [call(str(i), *map(str, needs[i][1])) for i in declared]
    with pytest.raises(InvalidPlan, match="cycle"):
        order(*calls, call("a", "b"), call("b", "a"))


def test_a_valid_declared_order_is_kept() -> None:
    assert order(call("a"), call("b", "a"), call("c")) == ["a", "b", "c"]
    assert order(call("b", "a"), call("c"), call("a")) == ["c", "a", "b"]


def test_a_call_that_needs_itself() -> None:
    with pytest.raises(InvalidPlan, match=r"cycle.*'a'"):
        order(call("a", "a"))


def test_unknown_references() -> None:
    with pytest.raises(InvalidPlan, match=r"unknown call.*valid: .'a', 'b'"):
        order(call("a"), call("b", "x"))
    target = PageRef(page=PageId(0), version=0)
    commit = Commit(output=OutputOf(call="x", name="layers"), target=target)
    with pytest.raises(InvalidPlan, match="unknown call"):
        plan(call("a"), commits=(commit,)).ordered()


def test_call_ids_are_unique() -> None:
    with pytest.raises(InvalidPlan, match="repeat"):
        order(call("a"), call("a"))


class Pair(NamedTuple):
    first: object
    second: object


def test_references_in_a_tuple_count_and_in_a_value_do_not() -> None:
    a = OutputOf(call="a", name="out")
    layered = OutputOf(call="b", name="out", granularity=Granularity.LAYER)
    cache = CacheRef(pages=(PageRef(page=PageId(0), version=0),))
    needy = call("c", branches=(a, layered, cache), pair=Pair(a, a), scalar=1, nothing=None)
    assert list(needy.dependencies()) == [a, layered]
    assert order(needy, call("a"), call("b")) == ["a", "b", "c"]


def test_a_result_says_what_it_has() -> None:
    result = WorkResult(outputs={"a": {"x": 1, "y": 2}})
    assert result.get("a", "x") == 1
    for wrong in (("a", "z"), ("b", "x")):
        with pytest.raises(InvalidPlan, match=r"valid: \{'a': \['x', 'y'\]\}"):
            result.get(*wrong)


def test_references_are_values() -> None:
    """They travel to other ranks and to disk, so equality is by what they name."""
    one, other = (PageRef(page=PageId(3), version=1) for _ in range(2))
    assert one == other
    assert hash(CacheRef(pages=(one,))) == hash(CacheRef(pages=(other,)))
    assert one != PageRef(page=PageId(3), version=2)
