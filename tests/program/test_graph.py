"""Programs as data: validated before anything runs, the least nodes for what is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import InvalidProgram
from ostinato.program import ComponentNode, LoopNode, Node, Program
from ostinato.tasks import OutputName
from ostinato.work import WorkUnitKind

VIDEO, LATENTS = OutputName.VIDEO, OutputName.LATENTS


def node(
    name: str, reads: tuple[str, ...], *writes: str, component: str = "net", streams: bool = False
) -> ComponentNode:
    return ComponentNode(
        name=name,
        component=component,
        op="op",
        kind=WorkUnitKind.ENCODER_CHUNK,
        inputs={f"in{i}": slot for i, slot in enumerate(reads)},
        outputs={f"out{i}": slot for i, slot in enumerate(writes)},
        streams=streams,
    )


def loop(name: str, reads: tuple[str, ...], *writes: str, loop_name: str = "rollout") -> LoopNode:
    return LoopNode(name=name, loop=loop_name, reads=frozenset(reads), writes=frozenset(writes))


ENCODE = node("encode", ("request.prompt",), "embeds")
NEGATIVE = node("encode_negative", ("request.negative_prompt",), "negative")
ROLLOUT = loop("rollout", ("embeds", "negative"), "latents")
DECODE = node("decode", ("latents",), "frames", streams=True)
NODES = (ENCODE, NEGATIVE, ROLLOUT, DECODE)


def program(*nodes: Node, outputs: dict[OutputName, str] | None = None) -> Program:
    chosen = {VIDEO: "frames", LATENTS: "latents"} if outputs is None else outputs
    return Program(name="video", nodes=nodes or NODES, outputs=chosen)


def errors(*nodes: Node, outputs: dict[OutputName, str] | None = None) -> tuple[str, ...]:
    return program(*nodes, outputs=outputs).validate(components=("net",), loops=("rollout",))


def test_a_sound_program() -> None:
    assert errors() == ()
    sound = program()
    assert sound.require_valid(components=("net",), loops=("rollout",)) is sound


CASES: dict[str, tuple[tuple[Node, ...], str]] = {
    "two writers": ((*NODES, node("again", ("embeds",), "latents")), "'latents' has two writers"),
    "one node writes a slot twice": (
        (node("encode", ("request.prompt",), "embeds", "embeds"), *NODES[1:]),
        "'embeds' has two writers",
    ),
    "a name twice": ((*NODES, node("decode", ("latents",), "x")), "'decode' is declared twice"),
    "a request slot": (
        (*NODES, node("x", ("embeds",), "request.prompt")),
        "belongs to the request",
    ),
    "an unknown slot": ((*NODES, node("x", ("embds",), "y")), "reads 'embds', which nobody writes"),
    "an unknown field": ((*NODES, node("x", ("request.promt",), "y")), "reads 'request.promt'"),
    "a component": (
        (*NODES, node("x", ("embeds",), "y", component="vae")),
        "'x': no component 'vae'",
    ),
    "a loop": ((*NODES, loop("x", ("embeds",), "y", loop_name="denoise")), "no loop 'denoise'"),
    "nothing written": ((*NODES, node("x", ("embeds",))), "'x' writes nothing"),
    "notes": (
        (*NODES, dataclasses.replace(DECODE, name="x", outputs={"notes": "y"}, streams=False)),
        "output 'notes' is kept",
    ),
    "a cycle": (
        (*NODES, node("x", ("b",), "a"), node("y", ("a",), "b"), node("z", ("b",), "c")),
        "nodes form a cycle, or wait for one: ['x', 'y', 'z']",
    ),
    "itself": ((*NODES, node("x", ("a",), "a")), "cycle, or wait for one: ['x']"),
    "streams without a loop": (
        (*NODES, node("x", ("embeds",), "y", streams=True)),
        "'x' streams, but reads nothing that a loop writes",
    ),
    "streams before its other input is there": (
        (
            *NODES,
            node("scale", ("latents",), "factor"),
            node("x", ("latents", "factor"), "y", streams=True),
        ),
        "'x' streams, but ['factor'] are not there while its loop runs",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_inconsistency_is_found(name: str) -> None:
    nodes, message = CASES[name]
    found = errors(*nodes)
    assert len(found) == 1, found
    assert message in found[0]


def test_an_output_without_a_writer() -> None:
    (error,) = errors(outputs={VIDEO: "pixels", LATENTS: "latents"})
    assert "is slot 'pixels', which nobody writes" in error
    (error,) = errors(outputs={VIDEO: "request.prompt"})
    assert "'request.prompt', which nobody writes" in error


def test_all_errors_come_at_once() -> None:
    broken = program(*NODES, node("decode", ("nowhere",), "embeds", component="vae"))
    with pytest.raises(InvalidProgram) as caught:
        broken.require_valid(components=("net",), loops=())
    for message in (
        "'decode' is declared twice",
        "'embeds' has two writers",
        "reads 'nowhere'",
        "no component 'vae'",
        "no loop 'rollout'",
        "program 'video'",
    ):
        assert message in str(caught.value)


def test_a_streaming_node_may_read_what_is_there_before_its_loop() -> None:
    assert errors(*NODES, node("x", ("latents", "embeds", "request.fps"), "y", streams=True)) == ()


def names(
    outputs: tuple[OutputName, ...],
    reads: Callable[[LoopNode], frozenset[str]] = lambda node: node.reads,
    *nodes: Node,
) -> list[str]:
    return [chosen.name for chosen in program(*nodes).select(outputs, reads)]


def test_latents_alone_do_not_decode() -> None:
    assert names((LATENTS,)) == ["encode", "encode_negative", "rollout"]
    assert names((VIDEO,)) == ["encode", "encode_negative", "rollout", "decode"]
    assert names((LATENTS, VIDEO)) == names((VIDEO,))


def test_an_input_that_the_request_does_not_need_is_not_made() -> None:
    assert names((LATENTS,), lambda _: frozenset({"embeds"})) == ["encode", "rollout"]


def test_nodes_are_ordered_whatever_the_declaration_and_kept_where_valid() -> None:
    turned = names((VIDEO,), lambda node: node.reads, *reversed(NODES))
    assert turned == ["encode_negative", "encode", "rollout", "decode"]
    late = node("late", ("embeds",), "other")
    chain = (ENCODE, node("then", ("embeds",), "latents"), late, node("end", ("other",), "frames"))
    assert names((VIDEO, LATENTS), lambda node: node.reads, *chain) == [n.name for n in chain]


def test_an_output_that_is_not_delivered() -> None:
    only = program(outputs={LATENTS: "latents"})
    with pytest.raises(InvalidProgram, match=r"delivers .*latents.*, not .*video"):
        only.select((VIDEO,), lambda node: node.reads)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Node, ...]:
    """Any graph without a cycle, declared in any order; node i writes slot i."""
    count = draw(st.integers(1, 8))
    nodes: list[Node] = []
    for index in range(count):
        before = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        reads = ("request.prompt", *(f"s{i}" for i in sorted(before)))
        nodes.append(node(f"n{index}", reads, f"s{index}"))
    return tuple(draw(st.permutations(nodes)))


@given(graphs(), st.data())
def test_the_least_nodes_of_any_graph(nodes: tuple[Node, ...], data: st.DataObject) -> None:
    wanted = data.draw(st.sampled_from(nodes))
    (slot,) = wanted.writes
    graph = program(*nodes, outputs={VIDEO: slot})
    assert graph.validate(components=("net",), loops=()) == ()
    chosen = graph.select((VIDEO,), lambda node: node.reads)
    writer = {s: n for n in nodes for s in n.writes}
    needed, todo = set[str](), [wanted]
    while todo:
        current = todo.pop()
        needed.add(current.name)
        todo += [writer[s] for s in current.reads if s in writer]
    assert sorted(n.name for n in chosen) == sorted(needed)
    made = {"request.prompt"}
    for current in chosen:
        assert current.reads <= made
        made |= current.writes
