"""JSON of contracts: what goes out comes back, and nothing else goes in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import BadInput, UnknownField
from ostinato.wire import canonical, decode, digest, encode


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    weight: float
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    color: Color
    count: int
    shift: float | None = None
    leaves: tuple[Leaf, ...] = ()
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    best: Leaf | None = None


texts = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.builds(Leaf, weight=numbers, name=texts)
scalars = st.booleans() | st.integers(-(2**60), 2**60) | numbers | texts
trees = st.builds(
    Tree,
    color=st.sampled_from(Color),
    count=st.integers(-(2**60), 2**60),
    shift=st.none() | numbers,
    leaves=st.lists(leaves, max_size=3).map(tuple),
    options=st.dictionaries(texts, scalars, max_size=3),
    best=st.none() | leaves,
)


@given(trees)
def test_round_trip(tree: Tree) -> None:
    data = canonical(tree)
    assert decode(data, Tree, what="tree") == tree
    assert canonical(decode(data, Tree, what="tree")) == data


@given(trees, trees)
def test_digest_tells_values_apart(left: Tree, right: Tree) -> None:
    assert (digest(left) == digest(right)) == (canonical(left) == canonical(right))
    if left != right:
        assert digest(left) != digest(right)


def test_digest_has_a_form() -> None:
    value = digest(Leaf(weight=1.0))
    assert value.startswith("sha256:")
    assert len(value) == len("sha256:") + 64


def test_a_whole_number_in_a_float_field_has_the_digest_of_its_decoded_twin() -> None:
    leaf = Leaf(weight=2)
    twin = decode(canonical(leaf), Leaf, what="leaf")
    assert digest(leaf) == digest(twin) == digest(Leaf(weight=2.0))


def test_the_order_of_declaration_does_not_matter() -> None:
    one = make_dataclass("Pair", [("a", int), ("b", int)])(a=1, b=2)
    other = make_dataclass("Pair", [("b", int), ("a", int)])(a=1, b=2)
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    "tree",
    [
        Tree(color=Color.RED, count=1, shift=float("nan")),
        Tree(color=Color.RED, count=1, shift=float("inf")),
        Tree(color=Color.RED, count="1"),  # type: ignore[arg-type]
        Tree(color=Color.RED, count=True),
        Tree(color="green", count=1),  # type: ignore[arg-type]
        Tree(color=Color.RED, count=1, leaves=[Leaf(weight=1.0)]),  # type: ignore[arg-type]
        Tree(color=Color.RED, count=1, options={"f": print}),  # type: ignore[dict-item]
        Tree(color=Color.RED, count=1, best=Leaf(weight=1.0, name="\ud800")),
    ],
    ids=["nan", "inf", "str", "bool", "enum", "list", "callable", "surrogate"],
)
def test_what_would_not_come_back_has_no_digest(tree: Tree) -> None:
    with pytest.raises(BadInput, match="Tree"):
        digest(tree)


def test_the_first_difference_is_named() -> None:
    tree = Tree(color=Color.RED, count=1, leaves=(Leaf(weight=0.0), Leaf(weight=float("nan"))))
    with pytest.raises(BadInput, match="weight"):
        canonical(tree)
    listed = Tree(color=Color.RED, count=1, leaves=[])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"`leaves` is \[\] and comes back as \(\)"):
        canonical(listed)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"color": "red", "count": 1, "sihft": 2.0}, "sihft"),
        ({"color": "red", "count": 1, "best": {"weight": 1.0, "nmae": "x"}}, "best.nmae"),
        (
            {"color": "red", "count": 1, "leaves": [{"weight": 1}, {"weight": 1, "w": 2}]},
            "leaves.1.w",
        ),
    ],
)
def test_unknown_fields_are_named_at_any_depth(document: object, path: str) -> None:
    with pytest.raises(UnknownField, match=f"tree has fields that nobody declares: {path}$"):
        decode(json.dumps(document), Tree, what="tree")


def test_keys_of_a_mapping_are_free() -> None:
    document = '{"color": "red", "count": 1, "options": {"anything": true}}'
    assert decode(document, Tree, what="tree").options == {"anything": True}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        '{"color": "\ud800"}',
        "[" * 100_000,
        '{"color": "green", "count": 1}',
        '{"color": "red"}',
        '{"color": "red", "count": "1"}',
        '{"color": "red", "count": 1.5}',
        '{"color": "red", "count": null}',
        '{"color": "red", "count": 1, "shift": 1e999}',
        '{"color": "red", "count": 1, "leaves": {}}',
        "null",
        "[]",
    ],
)
def test_what_does_not_fit_is_bad_input(data: bytes | str) -> None:
    with pytest.raises(BadInput, match=r"^tree does not decode"):
        decode(data, Tree, what="tree")


def test_encode_keeps_the_declared_order() -> None:
    assert encode(Leaf(weight=1.0, name="x")) == b'{"weight":1.0,"name":"x"}'
