"""Facts that stock loops plan by: what a component says of itself before its weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ostinato.errors import InvalidCard

F = TypeVar("F")
_FLOAT32_BYTES = 4


class Footprint(NamedTuple):
    """What a loop holds at once: pages, the tokens of one page, and of its widest call.

    Tokens count every guidance branch that a call carries.
    """

    num_pages: int
    page_tokens: int
    call_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiserFacts:
    """The network's side: channels of the latents it denoises.

    kv_bytes_per_token: keys and values of all layers that one token leaves in a page, 0 for a
    network that leaves none. peak_bytes_per_token: what one forward holds at once.
    """

    in_channels: int
    patch_size: tuple[int, int, int]
    kv_bytes_per_token: int = 0
    peak_bytes_per_token: int = 0

    def num_tokens(self, latent_frames: int, latent_height: int, latent_width: int) -> int:
        """Return the tokens of one sample."""
        frames, height, width = self.patch_size
        return (latent_frames // frames) * (latent_height // height) * (latent_width // width)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentFacts:
    """The codec's side: how pixels become latents.

    causal: the first frame has a latent frame of its own, so T frames have (T - 1) / stride + 1;
    otherwise they have T / stride, rounded up. peak_bytes_per_pixel: what decoding one latent frame
    holds at once, by pixel of the frames it becomes.
    """

    temporal_stride: int
    spatial_stride: int
    causal: bool
    peak_bytes_per_pixel: int = 0

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


def forward_bytes_per_token(width: int, ffn_dim: int) -> int:
    """Return what a transformer's forward holds of one token at once, in float32.

    The residual, its normed copy, query, key, value and what they give; or the residual, its normed
    copy and the feed-forward's two activations.
    """
    return _FLOAT32_BYTES * (2 * width + max(4 * width, 2 * ffn_dim))


def decode_bytes_per_pixel(channels: int) -> int:
    """Return what the last stage of a decoder holds of one pixel at once, in float32.

    Its input, its normed copy, a convolution's padded input and its output.
    """
    return _FLOAT32_BYTES * 4 * channels
