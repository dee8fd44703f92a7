"""Values that pass into and out of a causal video transformer: K/V, context and embeddings."""
# B batch, T latent frame, L token, N head, E head width, D width

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class LayerKV(NamedTuple):
    """New self-attention keys and values of one layer, each [B,L,N,E].

    `key_raw` is normed and not rotated: what an anchor needs to be shown at another position.
    """

    key_rotated: torch.Tensor
    key_raw: torch.Tensor
    value: torch.Tensor


class ContextKV(NamedTuple):
    """What one layer attends to besides its own tokens, oldest first, each [B,Lc,N,E]."""

    keys_rotated: torch.Tensor
    values: torch.Tensor


class TextKV(NamedTuple):
    """Cross-attention keys and values of one layer, each [B,Lt,N,E]."""

    key: torch.Tensor
    value: torch.Tensor


class Segment(NamedTuple):
    """The samples of a stacked call that belong together, and what they attend to.

    rows: their place on the batch axis. text_kv and context: one entry a layer.
    """

    rows: slice
    text_kv: Sequence[TextKV]
    context: Sequence[ContextKV | None] | None

    def seen(self, index: int) -> ContextKV | None:
        """Return the context of the `index`-th of the layers."""
        return None if self.context is None else self.context[index]


class Grid(NamedTuple):
    """Tokens of a call: latent frames, rows and columns of patches."""

    frames: int
    rows: int
    columns: int


class Embedded(NamedTuple):
    """Input of the blocks: hidden_states [B,L,D], temb [B,T,D], modulation [B,T,6,D]."""

    hidden_states: torch.Tensor
    temb: torch.Tensor
    modulation: torch.Tensor
    grid: Grid


class Projected(NamedTuple):
    """What a layer knows before it attends: its rotated query [B,L,N,E] and its new K/V."""

    query_rotated: torch.Tensor
    kv: LayerKV
