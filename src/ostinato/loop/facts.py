"""Facts that stock loops plan by: what a component says of itself before its weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ostinato.errors import InvalidCard

F = TypeVar("F")


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiserFacts:
    """The network's side: channels of the latents it denoises."""

    in_channels: int
    patch_size: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentFacts:
    """The codec's side: how pixels become latents.

    causal: the first frame has a latent frame of its own, so T frames have (T - 1) / stride + 1;
    otherwise they have T / stride, rounded up.
    """

    temporal_stride: int
    spatial_stride: int
    causal: bool

    def num_latent_frames(self, num_frames: int) -> int:
        """Return the latent frames that hold `num_frames` frames."""
        if self.causal:
            return (num_frames - 1) // self.temporal_stride + 1
        return -(-num_frames // self.temporal_stride)


def fact(facts: Mapping[str, object], role: str, kind: type[F]) -> F:
    """Return what the component bound to `role` says; raises InvalidCard when it says else."""
    found = facts.get(role)
    if not isinstance(found, kind):
        raise InvalidCard(
            f"role {role!r} is bound to a component with {type(found).__name__}; this loop needs "
            f"{kind.__name__}"
        )
    return found
