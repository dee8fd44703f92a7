"""What a finished request delivers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ostinato.errors import OutputMissing
from ostinato.media import Video
from ostinato.request import GenerationSpec
from ostinato.tasks import OutputName


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How an output came to be; enough to make it again.

    spec: the request with every default filled in. tenant: who pays for it. queued_s: seconds from
    its submission to its first step. determinism: what is promised of the bytes; a tolerance where
    any step was fast. cpu_threads: threads of its kernels; some of
    them round differently at another count. calls: executed calls by `component.op`.
    stacked_steps: steps that shared a forward with other requests. fast_steps: those of them whose
    forward was not held to the batch rules (`Batching.FAST`): with any, the bytes may depend on
    who else was served, within the tolerance that the card declares.
    device_s: device-seconds spent on its steps, and by node. load_s: seconds spent loading
    components for it.
    versions: library versions by name.
    """

    model_id: str
    card_digest: str
    spec: GenerationSpec
    precision: str
    determinism: str
    tenant: str
    queued_s: float
    cpu_threads: int
    calls: Mapping[str, int]
    stacked_steps: int
    fast_steps: int
    device_s: float
    device_s_by_node: Mapping[str, float]
    load_s: float
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The outputs a request asked for, and what the caller should know about them.

    advice: sentences such as words of the prompt that the model does not know.
    """

    values: Mapping[OutputName, Video | torch.Tensor]
    provenance: Provenance
    advice: tuple[str, ...]

    @property
    def video(self) -> Video:
        """The clip; raises OutputMissing when the request did not ask for it."""
        value = self._get(OutputName.VIDEO)
        assert isinstance(value, Video)
        return value

    @property
    def latents(self) -> torch.Tensor:
        """The final latents [1, C, T, H, W] in the loop's own dtype; raises OutputMissing."""
        value = self._get(OutputName.LATENTS)
        assert isinstance(value, torch.Tensor)
        return value

    def _get(self, name: OutputName) -> Video | torch.Tensor:
        if name not in self.values:
            asked = sorted(self.values)
            raise OutputMissing(
                f"output {name.value!r} was not asked for (asked: {asked}); "
                f"pass outputs=({name.value!r}, ...)"
            )
        return self.values[name]
