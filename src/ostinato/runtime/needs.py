"""What a request needs, from facts alone: before anything is loaded, and rather too much."""

from __future__ import annotations

from ostinato.request import GenerationSpec
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.running import RunningRequest
from ostinato.runtime.scheduler import Waiting
from ostinato.runtime.selection import Selection
from ostinato.tasks import OutputName
from ostinato.work import Resources

_RGB = 3
_PIXEL_BYTES = 4  # decoded pixels are float32 before they become whole levels


def waiting_of(running: RunningRequest, compute_s: float, unmeasured_s: float = 0.0) -> Waiting:
    """Return what the scheduler knows of a request that waits; seconds as it has them."""
    claim = running.claim
    return Waiting(
        request_id=running.spec.request_id,
        tenant=claim.tenant,
        priority=claim.priority,
        arrival=claim.arrival,
        arrived_s=claim.arrived_s,
        deadline_s=claim.deadline_s,
        need=need_of(running.selection, running.spec, compute_s),
        remaining_s=compute_s,
        unmeasured_s=unmeasured_s,
        weights=weights_of(running.model, running.selection),
    )


def weights_of(model: ResidentModel, selection: Selection) -> tuple[tuple[str, float], ...]:
    """Return (`model_id/component`, bytes) of the weights that the request runs on."""
    model_id = model.card.model_id
    return tuple(
        (f"{model_id}/{name}", float(model.weight_bytes(name))) for name in selection.components
    )


def need_of(selection: Selection, spec: GenerationSpec, compute_s: float) -> Resources:
    """Return the baseline of a request; compute_s: its predicted device-seconds.

    memory_bytes: its pages, the worst of its units, and its decoded pixels. sink_bytes: the clip,
    kept until it is fetched.
    """
    pixels = spec.num_frames * spec.height * spec.width
    video = OutputName.VIDEO in spec.outputs
    decoded = float(pixels * _RGB * _PIXEL_BYTES) if video else 0.0
    return Resources(
        compute_s=compute_s,
        memory_bytes=selection.page_bytes + selection.peak_bytes + decoded,
        pages=float(selection.num_pages),
        sink_bytes=float(pixels * _RGB) if video else 0.0,
    )
