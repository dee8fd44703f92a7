"""What a request's loops may ask of the runtime."""

from __future__ import annotations

from ostinato.loop.contract import LoopContext, Ring
from ostinato.loop.noise import NoiseStream
from ostinato.request import CancelScope, GenerationSpec
from ostinato.runtime.resident import ResidentModel


def loop_context(
    model: ResidentModel, spec: GenerationSpec, scope: CancelScope, loop: str
) -> LoopContext:
    """Return the context of one loop; the rings that it opens are closed with the scope."""

    def open_ring(num_pages: int) -> Ring:
        ring = model.pages.open_ring(num_pages)
        scope.hold(lambda: model.pages.close_ring(ring))
        return ring

    return LoopContext(
        facts=model.loop_facts(loop), noise=NoiseStream(seed=spec.seed), open_ring=open_ring
    )
