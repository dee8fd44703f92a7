"""Keys and values of attention, kept functionally in write-once pages.

An op returns its new keys and values; the runtime commits them into a (page, version) slot and
nothing ever writes that slot again at that version. A ring keeps one request's pages in one
contiguous buffer a layer, so that attention reads a slice; only a window that wraps is joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from ostinato.errors import PageViolation
from ostinato.work import CacheRef, PageId, PageRef


class LayerEntry(Protocol):
    """One layer's new keys (rotated at absolute positions) and values, [B, L, N, D] each."""

    @property
    def key_rotated(self) -> torch.Tensor: ...
    @property
    def value(self) -> torch.Tensor: ...


class LayerContext(NamedTuple):
    """One layer's visible history, oldest first, each [B, L, N, D]."""

    keys_rotated: torch.Tensor
    values: torch.Tensor


class KVRing:
    """One request's pages for one branch group; geometry is fixed by the first commit."""

    def __init__(self, page_ids: Sequence[PageId]) -> None:
        self._page_ids = tuple(page_ids)
        self._versions = dict.fromkeys(page_ids, -1)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._page_tokens = 0

    @property
    def page_ids(self) -> tuple[PageId, ...]:
        """The slots of this ring in buffer order."""
        return self._page_ids

    @property
    def num_bytes(self) -> int:
        """Bytes that the buffers hold."""
        return sum(t.numel() * t.element_size() for t in (*self._keys, *self._values))

    def page(self, index: int) -> PageRef:
        """Name the slot of the `index`-th page that the request writes; pure.

        Slots are reused in turn, each time under the next version, so committing page
        `index + capacity` ends the life of page `index`.
        """
        capacity = len(self._page_ids)
        return PageRef(page=self._page_ids[index % capacity], version=index // capacity)

    def commit(self, target: PageRef, layers: Sequence[LayerEntry]) -> None:
        """Write a page once; raises PageViolation on a second write or a version out of turn."""
        version = self._versions[target.page]
        if target.version != version + 1:
            raise PageViolation(
                f"{target} cannot be written: the slot is at version {version}, so only version "
                f"{version + 1} can be"
            )
        if not self._keys:
            self._allocate(layers)
        start = self._page_ids.index(target.page) * self._page_tokens
        rows = slice(start, start + self._page_tokens)
        for layer, keys, values in zip(layers, self._keys, self._values, strict=True):
            if layer.key_rotated.shape[1] != self._page_tokens:
                raise PageViolation(
                    f"{target}: {layer.key_rotated.shape[1]} tokens; pages of this ring hold "
                    f"{self._page_tokens}"
                )
            keys[:, rows] = layer.key_rotated
            values[:, rows] = layer.value
        self._versions[target.page] = target.version

    def read(self, pages: Sequence[PageRef]) -> tuple[LayerContext, ...]:
        """Return each layer's keys and values in the order of `pages`.

        Consecutive slots come back as a view of the buffer; anything else is joined. Raises
        PageViolation for a page that is not committed at the version asked for.
        """
        for ref in pages:
            version = self._versions.get(ref.page)
            if version != ref.version:
                raise PageViolation(f"{ref} cannot be read: the slot is at version {version}")
        runs = self._runs([self._page_ids.index(ref.page) for ref in pages])
        return tuple(
            LayerContext(_join(keys, runs), _join(values, runs))
            for keys, values in zip(self._keys, self._values, strict=True)
        )

    def _allocate(self, layers: Sequence[LayerEntry]) -> None:
        for layer in layers:
            batch, tokens, heads, width = layer.key_rotated.shape
            shape = (batch, tokens * len(self._page_ids), heads, width)
            self._keys.append(layer.key_rotated.new_empty(shape))
            self._values.append(layer.value.new_empty(shape))
            self._page_tokens = tokens

    def _runs(self, slots: list[int]) -> list[slice]:
        runs: list[slice] = []
        for slot in slots:
            start = slot * self._page_tokens
            if runs and runs[-1].stop == start:
                runs[-1] = slice(runs[-1].start, start + self._page_tokens)
            else:
                runs.append(slice(start, start + self._page_tokens))
        return runs


def _join(buffer: torch.Tensor, runs: list[slice]) -> torch.Tensor:
    parts = [buffer[:, run] for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class KVPool:
    """Hands out rings of pages whose ids are unique in the pool, and takes them back."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._owner: dict[PageId, KVRing] = {}

    @property
    def num_pages(self) -> int:
        """Pages that are handed out."""
        return len(self._owner)

    @property
    def num_bytes(self) -> int:
        """Bytes that all open rings hold."""
        rings = {id(ring): ring for ring in self._owner.values()}
        return sum(ring.num_bytes for ring in rings.values())

    def open_ring(self, num_pages: int) -> KVRing:
        """Hand out a ring of `num_pages` slots."""
        ring = KVRing([PageId(next(self._ids)) for _ in range(num_pages)])
        self._owner.update(dict.fromkeys(ring.page_ids, ring))
        return ring

    def close_ring(self, ring: KVRing) -> None:
        """Take a ring back; reading its pages afterwards is a PageViolation."""
        for page in ring.page_ids:
            self._owner.pop(page, None)

    def commit(self, target: PageRef, layers: Sequence[LayerEntry]) -> None:
        """Write a page once; raises PageViolation."""
        self._ring(target).commit(target, layers)

    def read(self, ref: CacheRef) -> tuple[LayerContext, ...] | None:
        """Resolve a reference to per-layer context; None when it names no page."""
        if not ref.pages:
            return None
        return self._ring(ref.pages[0]).read(ref.pages)

    def _ring(self, ref: PageRef) -> KVRing:
        ring = self._owner.get(ref.page)
        if ring is None:
            raise PageViolation(f"{ref} belongs to no open ring; it was freed or never reserved")
        return ring
