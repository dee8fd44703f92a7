"""Programs as data: a typed graph of nodes over one card, with declared reads and writes.

A slot is a named value. Slots that start with `request.` are the fields of the validated request;
every other slot has exactly one writer. A streaming node runs on pieces while the loop that makes
them still runs, so whatever else it reads must be there before that loop. For the outputs that a
request asks for, a program runs the least nodes, and so touches the least components.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ostinato.errors import InvalidProgram
from ostinato.request import GenerationSpec
from ostinato.tasks import OutputName
from ostinato.work import WorkUnitKind

REQUEST_PREFIX = "request."
NOTES = "notes"
"""An op may return this output: a tuple of sentences for the caller, whatever the program."""
REQUEST_SLOTS = frozenset(REQUEST_PREFIX + f.name for f in dataclasses.fields(GenerationSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentNode:
    """One call of one op.

    inputs: argument name -> slot read. outputs: output name -> slot written.
    streams: run it on each piece of its input as the piece is finished, and join what it writes
    along the first axis.
    """

    name: str
    component: str
    op: str
    kind: WorkUnitKind
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    streams: bool = False

    @property
    def reads(self) -> frozenset[str]:
        """The slots this node may read."""
        return frozenset(self.inputs.values())

    @property
    def writes(self) -> frozenset[str]:
        """The slots this node must write."""
        return frozenset(self.outputs.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopNode:
    """One driven loop of the card; which of its reads it needs depends on the request."""

    name: str
    loop: str
    reads: frozenset[str]
    writes: frozenset[str]


Node = ComponentNode | LoopNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Nodes, and the slot in which each deliverable output is found."""

    name: str
    nodes: tuple[Node, ...]
    outputs: Mapping[OutputName, str]

    def validate(self, *, components: Iterable[str], loops: Iterable[str]) -> tuple[str, ...]:
        """Return every inconsistency against a card's component and loop names."""
        errors = [*self._slot_errors()]
        valid_components, valid_loops = set(components), set(loops)
        for node in self.nodes:
            if isinstance(node, ComponentNode) and node.component not in valid_components:
                errors.append(f"node {node.name!r}: no component {node.component!r}")
            if isinstance(node, LoopNode) and node.loop not in valid_loops:
                errors.append(f"node {node.name!r}: no loop {node.loop!r}")
        if not errors:
            order = self._sorted()
            left = [node.name for node in self.nodes if node not in order]
            errors += [f"nodes form a cycle, or wait for one: {left}"] if left else []
            errors += _streaming_errors(order)
        return tuple(errors)

    def require_valid(self, *, components: Iterable[str], loops: Iterable[str]) -> Program:
        """Return the program itself; raises InvalidProgram that lists all errors."""
        errors = self.validate(components=components, loops=loops)
        if errors:
            raise InvalidProgram(f"program {self.name!r}:\n  - " + "\n  - ".join(errors))
        return self

    def select(
        self, outputs: Iterable[OutputName], reads: Callable[[LoopNode], frozenset[str]]
    ) -> tuple[Node, ...]:
        """Return the least nodes that the outputs need, each after what it reads.

        reads: which of a loop node's declared reads the request needs. Raises InvalidProgram
        for an output that the program does not deliver.
        """
        wanted = list(outputs)
        unknown = [name for name in wanted if name not in self.outputs]
        if unknown:
            raise InvalidProgram(
                f"program {self.name!r} delivers {sorted(self.outputs)}, not {unknown}"
            )
        writer = {slot: node for node in self.nodes for slot in node.writes}
        needed: set[str] = set()
        todo = [self.outputs[name] for name in wanted]
        while todo:
            node = writer.get(todo.pop())
            if node is None or node.name in needed:
                continue
            needed.add(node.name)
            todo += reads(node) if isinstance(node, LoopNode) else node.reads
        return tuple(node for node in self._sorted() if node.name in needed)

    def _slot_errors(self) -> Iterator[str]:
        names = [node.name for node in self.nodes]
        written = [slot for node in self.nodes for slot in _written(node)]
        for node in self.nodes:
            if not node.writes:
                yield f"node {node.name!r} writes nothing, so nothing can need it"
            if isinstance(node, ComponentNode) and NOTES in node.outputs:
                yield f"node {node.name!r}: output {NOTES!r} is kept for sentences to the caller"
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"node {name!r} is declared twice"
        for slot in sorted({s for s in written if written.count(s) > 1}):
            yield f"slot {slot!r} has two writers"
        for slot in sorted(s for s in written if s.startswith(REQUEST_PREFIX)):
            yield f"slot {slot!r} belongs to the request and cannot be written"
        known = set(written) | REQUEST_SLOTS
        for node in self.nodes:
            for slot in sorted(node.reads - known):
                yield f"node {node.name!r} reads {slot!r}, which nobody writes"
        for output, slot in self.outputs.items():
            if slot not in written:
                yield f"output {output!r} is slot {slot!r}, which nobody writes"

    def _sorted(self) -> list[Node]:
        """Topological order, as close to declared as can be; nodes of a cycle are left out."""
        available, order = set(REQUEST_SLOTS), list[Node]()
        waiting = list(self.nodes)
        while node := next((node for node in waiting if node.reads <= available), None):
            order.append(node)
            available |= node.writes
            waiting.remove(node)
        return order


def _written(node: Node) -> tuple[str, ...]:
    """Return the slots a node writes, one for each output that writes it."""
    return tuple(node.outputs.values()) if isinstance(node, ComponentNode) else tuple(node.writes)


def _streaming_errors(order: list[Node]) -> Iterator[str]:
    """Find what a streaming node reads but could not yet have while the loop it follows runs."""
    place = {slot: index for index, node in enumerate(order) for slot in node.writes}
    for node in order:
        if not (isinstance(node, ComponentNode) and node.streams):
            continue
        made = sorted((place[slot], slot) for slot in node.reads if slot in place)
        looped = [index for index, _ in made if isinstance(order[index], LoopNode)]
        if not looped:
            yield f"node {node.name!r} streams, but reads nothing that a loop writes"
        elif late := [slot for index, slot in made if index >= looped[0]][1:]:
            yield f"node {node.name!r} streams, but {late} are not there while its loop runs"
