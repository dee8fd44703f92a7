"""What a finished request hands over: values narrowed to what they are, and how they came to be.

Library versions are read once a process: a reading parses the package's metadata, which costs as
much as many steps of the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.card import Determinism, ModelCard
from ostinato.media import Video
from ostinato.request import GenerationSpec
from ostinato.runtime.output import Output, Provenance
from ostinato.tasks import OutputName
from ostinato.work import WorkPlan

_LIBRARIES = ("torch", "diffusers", "transformers", "ostinato")


@dataclass(slots=True)
class Spent:
    """What a request has cost so far; the fields are those of Provenance."""

    tenant: str
    queued_s: float = 0.0
    cpu_threads: int = 0
    calls: Counter[str] = field(default_factory=Counter[str])
    stacked_steps: int = 0
    fast_steps: int = 0
    device_s_by_node: dict[str, float] = field(default_factory=dict[str, float])
    load_s: float = 0.0

    @property
    def device_s(self) -> float:
        """Device-seconds of all nodes."""
        return sum(self.device_s_by_node.values())

    def add(self, node: str, plan: WorkPlan, device_s: float) -> None:
        """Count a plan that a node ran."""
        self.device_s_by_node[node] = self.device_s_by_node.get(node, 0.0) + device_s
        for call in plan.calls:
            self.calls[f"{call.component}.{call.op}"] += 1

    def lose(self, node: str, device_s: float) -> None:
        """Count what a node took for nothing."""
        self.device_s_by_node[node] = self.device_s_by_node.get(node, 0.0) + device_s


def make_output(
    *,
    card: ModelCard,
    spec: GenerationSpec,
    values: Mapping[OutputName, object],
    advice: tuple[str, ...],
    spent: Spent,
) -> Output:
    """Make the output of a request; values: what its program left in the slots it asked for."""
    found: dict[OutputName, Video | torch.Tensor] = {
        name: _video(value, spec) if name is OutputName.VIDEO else _tensor(value)
        for name, value in values.items()
    }
    return Output(values=found, provenance=_provenance(card, spec, spent), advice=advice)


def frames_of(value: object) -> NDArray[np.uint8]:
    """Narrow a video slot; programs promise uint8 [T, H, W, 3] there."""
    assert hasattr(value, "__array__"), type(value)
    return cast("NDArray[np.uint8]", value)


def read_only(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a view that cannot be written: chunks and clip share their memory."""
    view = frames.view()
    view.flags.writeable = False
    return view


def _provenance(card: ModelCard, spec: GenerationSpec, spent: Spent) -> Provenance:
    promised = card.parity.output_determinism
    determinism = Determinism.TOLERANCE if spent.fast_steps else promised
    return Provenance(
        model_id=card.model_id,
        card_digest=card.digest(),
        spec=spec,
        precision=card.precision.weights,
        determinism=determinism.value,
        tenant=spent.tenant,
        queued_s=spent.queued_s,
        cpu_threads=spent.cpu_threads,
        calls=dict(spent.calls),
        stacked_steps=spent.stacked_steps,
        fast_steps=spent.fast_steps,
        device_s=spent.device_s,
        device_s_by_node=dict(spent.device_s_by_node),
        load_s=spent.load_s,
        versions={name: _version(name) for name in _LIBRARIES},
    )


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _video(value: object, spec: GenerationSpec) -> Video:
    return Video(frames=frames_of(value)[: spec.num_frames], fps=spec.fps)


def _tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value
