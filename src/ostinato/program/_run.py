"""Run a program for one request, step by step: the program is itself a driven loop.

The state is an immutable value; `next` describes one plan and `advance` folds its result in, so
that the engine treats an encoder call, a denoise step and a streamed decode alike. Reads and
writes that a node did not declare are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from ostinato.errors import InvalidPlan, UndeclaredAccess
from ostinato.loop.contract import DONE, Done, Emission, Loop, LoopContext
from ostinato.program._graph import NOTES, REQUEST_PREFIX, ComponentNode, LoopNode, Node
from ostinato.program._join import join_pieces
from ostinato.request import GenerationSpec
from ostinato.work import ComponentCall, WorkPlan, WorkResult

CALL = "node"


class SlotView:
    """The values a node declared; anything else is an UndeclaredAccess."""

    def __init__(self, node: Node, values: Mapping[str, object]) -> None:
        self._node = node
        self._values = values

    def __getitem__(self, name: str) -> object:
        if name not in self._node.reads:
            declared = sorted(self._node.reads)
            raise UndeclaredAccess(
                f"node {self._node.name!r} read slot {name!r}; it declares {declared}"
            )
        if name not in self._values:
            raise UndeclaredAccess(
                f"node {self._node.name!r} read slot {name!r}, which this request does not need "
                "by what the loop's `reads` said, so nothing made it"
            )
        return self._values[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A finished piece of a slot, in order."""

    slot: str
    index: int
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramState:
    """Between two steps of a request.

    position: the node that runs, as an index into the selected nodes. queue: emissions of the
    running loop that a streaming node has yet to take. pieces: what each streaming node wrote so
    far. fresh, notes: what the latest `advance` added. plan: the next one of the running loop,
    once `advance` has asked for it to see whether the loop is done.
    """

    slots: Mapping[str, object]
    position: int = 0
    loop_state: object = None
    queue: tuple[tuple[ComponentNode, Emission], ...] = ()
    pieces: Mapping[str, tuple[object, ...]]
    fresh: tuple[Piece, ...] = ()
    notes: tuple[str, ...] = ()
    plan: WorkPlan | None = None


class ProgramRun:
    """The selected nodes of one request; holds no state of its own."""

    def __init__(
        self,
        spec: GenerationSpec,
        nodes: tuple[Node, ...],
        loop: Callable[[str], Loop[object]],
        context: Callable[[str], LoopContext],
    ) -> None:
        """Take the nodes in order, and how to find a loop and make its context by name."""
        self._spec = spec
        self._nodes = nodes
        self._loop = loop
        self._context = context

    def init(self) -> ProgramState:
        """Start with the request's fields as slots."""
        fields = {name: getattr(self._spec, name) for name in self._spec.__dataclass_fields__}
        slots = {REQUEST_PREFIX + name: value for name, value in fields.items()}
        return ProgramState(slots=slots, pieces={})

    def node_name(self, state: ProgramState) -> str:
        """Return the name of the node whose plan is next."""
        if state.queue:
            return state.queue[0][0].name
        return self._nodes[state.position].name if state.position < len(self._nodes) else ""

    def enter(self, state: ProgramState) -> ProgramState:
        """Start the loop at the current position; called before `next`, runs tensor code."""
        if state.position == len(self._nodes) or state.loop_state is not None:
            return state
        node = self._nodes[state.position]
        if not isinstance(node, LoopNode):
            return state
        loop_state = self._loop(node.loop).init(
            self._spec, SlotView(node, state.slots), self._context(node.loop)
        )
        return replace(state, loop_state=loop_state)

    def next(self, state: ProgramState) -> WorkPlan | Done:
        """Describe the next plan; streamed pieces go first."""
        if state.queue:
            node, emission = state.queue[0]
            return _node_plan(node, {**state.slots, emission.slot: emission.value})
        if state.plan is not None:
            return state.plan
        if state.position == len(self._nodes):
            return DONE
        node = self._nodes[state.position]
        if isinstance(node, ComponentNode):
            return _node_plan(node, state.slots)
        plan = self._loop(node.loop).next(state.loop_state)
        assert not isinstance(plan, Done), "a finished loop is left in `advance`"
        return plan

    def advance(self, state: ProgramState, result: WorkResult) -> ProgramState:
        """Fold a plan's result in."""
        if state.queue:
            return self._leave(self._take_piece(state, result))
        node = self._nodes[state.position]
        if isinstance(node, ComponentNode):
            return self._take_node(state, node, result)
        loop = self._loop(node.loop)
        loop_state = loop.advance(state.loop_state, result)
        emitted = loop.emitted(loop_state)
        queue = tuple((n, e) for e in emitted for n in self._streams(e.slot))
        moved = replace(state, loop_state=loop_state, queue=queue, plan=None, fresh=(), notes=())
        return self._leave(moved)

    def _leave(self, state: ProgramState) -> ProgramState:
        """Move past the running loop once it is done and nothing waits to be streamed."""
        node = self._nodes[state.position]
        if state.queue or not isinstance(node, LoopNode):
            return state
        loop = self._loop(node.loop)
        plan = loop.next(state.loop_state)
        if not isinstance(plan, Done):
            return replace(state, plan=plan)
        written = loop.finalize(state.loop_state).slots
        if frozenset(written) != node.writes:
            raise UndeclaredAccess(
                f"node {node.name!r} wrote {sorted(written)}; it declares {sorted(node.writes)}"
            )
        slots = {**state.slots, **written}
        for name, pieces in state.pieces.items():
            slots[name] = join_pieces(name, pieces)
        state = replace(state, slots=slots, loop_state=None, position=state.position + 1)
        return self._skip_streamed(state)

    def _skip_streamed(self, state: ProgramState) -> ProgramState:
        position = state.position
        while position < len(self._nodes):
            node = self._nodes[position]
            if not (isinstance(node, ComponentNode) and node.writes <= set(state.pieces)):
                break
            position += 1
        return replace(state, position=position)

    def _streams(self, slot: str) -> list[ComponentNode]:
        return [
            node
            for node in self._nodes
            if isinstance(node, ComponentNode) and node.streams and slot in node.reads
        ]

    def _take_piece(self, state: ProgramState, result: WorkResult) -> ProgramState:
        (node, emission), *rest = state.queue
        written, notes = _written(node, result)
        pieces = dict(state.pieces)
        for slot, value in written.items():
            pieces[slot] = (*pieces.get(slot, ()), value)
        fresh = tuple(Piece(slot=s, index=emission.index, value=v) for s, v in written.items())
        return replace(state, queue=tuple(rest), pieces=pieces, fresh=fresh, notes=notes)

    def _take_node(
        self, state: ProgramState, node: ComponentNode, result: WorkResult
    ) -> ProgramState:
        written, notes = _written(node, result)
        fresh = tuple(Piece(slot=s, index=0, value=v) for s, v in written.items() if node.streams)
        state = replace(
            state,
            slots={**state.slots, **written},
            position=state.position + 1,
            fresh=fresh,
            notes=notes,
        )
        return self._skip_streamed(state)


def _node_plan(node: ComponentNode, values: Mapping[str, object]) -> WorkPlan:
    view = SlotView(node, values)
    inputs = {argument: view[slot] for argument, slot in node.inputs.items()}
    call = ComponentCall(call_id=CALL, component=node.component, op=node.op, inputs=inputs)
    return WorkPlan(kind=node.kind, calls=(call,))


def _written(node: ComponentNode, result: WorkResult) -> tuple[dict[str, object], tuple[str, ...]]:
    """Split an op's outputs into declared slots and notes."""
    outputs = dict(result.outputs[CALL])
    notes = outputs.pop(NOTES, ())
    missing = set(node.outputs) - set(outputs)
    if missing:
        raise InvalidPlan(
            f"op {node.op!r} of {node.component!r} gave {sorted(outputs)}; node {node.name!r} "
            f"declares {sorted(node.outputs)}"
        )
    undeclared = set(outputs) - set(node.outputs)
    if undeclared:
        raise UndeclaredAccess(
            f"op {node.op!r} of {node.component!r} wrote {sorted(undeclared)}, which node "
            f"{node.name!r} does not declare"
        )
    slots = {slot: outputs[name] for name, slot in node.outputs.items()}
    return slots, cast("tuple[str, ...]", notes)
