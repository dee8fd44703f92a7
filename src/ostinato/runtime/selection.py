"""What one request needs of a program: the least nodes, how many plans they take, their slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ostinato.loop.facts import DenoiserFacts, Footprint, LatentFacts, fact
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
    def plans_by_node(self) -> dict[str, int]:
        """Plans of each node."""
        return {node.name: self._num_plans(node) for node in self.nodes}

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components whose ops the nodes call."""
        named: list[str] = []
        for node in self.nodes:
            if isinstance(node, LoopNode):
                named.append(self._model.card.loop(node.loop).binds["denoiser"])
            else:
                named.append(node.component)
        return tuple(dict.fromkeys(named))

    @property
    def num_pages(self) -> int:
        """K/V pages that the loops open."""
        return sum(footprint.num_pages for footprint, _, _ in self._footprints())

    @property
    def page_bytes(self) -> float:
        """Bytes of those pages."""
        return float(
            sum(
                footprint.num_pages * footprint.page_tokens * denoiser.kv_bytes_per_token
                for footprint, denoiser, _ in self._footprints()
            )
        )

    @property
    def peak_bytes(self) -> float:
        """The most that one unit holds besides weights, pages and the clip."""
        spec, peaks = self._spec, [0]
        for footprint, denoiser, latents in self._footprints():
            peaks.append(footprint.call_tokens * denoiser.peak_bytes_per_token)
            pixels = latents.temporal_stride * spec.height * spec.width
            peaks.append(pixels * latents.peak_bytes_per_pixel)
        return float(max(peaks))

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

    def _footprints(self) -> Iterator[tuple[Footprint, DenoiserFacts, LatentFacts]]:
        for node in self.nodes:
            if isinstance(node, LoopNode):
                facts = self._facts(node)
                footprint = self._model.loop(node.loop).footprint(self._spec, facts)
                denoiser = fact(facts, "denoiser", DenoiserFacts)
                yield footprint, denoiser, fact(facts, "latents", LatentFacts)

    def _facts(self, node: LoopNode) -> Mapping[str, object]:
        return self._model.loop_facts(node.loop)
