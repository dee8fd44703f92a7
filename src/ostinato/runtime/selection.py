"""What one request needs of a program: the least nodes, how many plans they take, their slots."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.program import LoopNode, Node, Program, ProgramState
from ostinato.request import GenerationSpec
from ostinato.runtime.resident import ResidentModel
from ostinato.tasks import OutputName


class Selection:
    """Made when the request is submitted, from facts alone: nothing is loaded."""

    def __init__(self, model: ResidentModel, program: Program, spec: GenerationSpec) -> None:
        """Select the least nodes that the asked outputs need."""
        self._model, self._program, self._spec = model, program, spec
        self.nodes = program.select(spec.outputs, lambda node: model.loop(node.loop).reads(spec))

    @property
    def num_plans(self) -> int:
        """Plans of all nodes."""
        return sum(self._num_plans(node) for node in self.nodes)

    @property
    def video_slot(self) -> str | None:
        """The slot whose pieces are those of the clip; None in a program that makes no clip."""
        return self._program.outputs.get(OutputName.VIDEO)

    def outputs(self, state: ProgramState) -> Mapping[OutputName, object]:
        """Return what was asked for out of the last state."""
        return {name: state.slots[self._program.outputs[name]] for name in self._spec.outputs}

    def _num_plans(self, node: Node) -> int:
        """Count the plans of a node: a streaming one runs for each piece of what it reads."""
        if isinstance(node, LoopNode):
            return self._model.loop(node.loop).num_steps(self._spec, self._facts(node))
        pieces = [
            self._model.loop(other.loop).num_pieces(self._spec, self._facts(other))
            for other in self.nodes
            if isinstance(other, LoopNode) and node.streams and other.writes & node.reads
        ]
        return max([1, *pieces])

    def _facts(self, node: LoopNode) -> Mapping[str, object]:
        return self._model.loop_facts(node.loop)
