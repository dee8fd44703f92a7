"""Keys and values of attention, kept functionally in write-once pages.

An op returns its new keys and values; the runtime commits them into a (page, version) slot and
nothing ever writes that slot again at that version. A ring keeps one request's pages in one
contiguous buffer a layer, so that attention reads a slice; only a window that wraps is joined.
Pages hold values, not graphs: a commit detaches, and what is read with grad enabled is a copy,
since autograd may keep it while later commits write to the same buffer.
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


class _Entry(NamedTuple):
    """What all pages of a ring agree on, for one layer's keys or values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class KVRing:
    """One request's pages for one branch group; geometry is fixed by the first commit."""

    def __init__(self, page_ids: Sequence[PageId]) -> None:
        assert page_ids, "a ring has at least one page"
        self._page_ids = tuple(page_ids)
        self._versions = dict.fromkeys(page_ids, -1)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._geometry: tuple[_Entry, ...] = ()
        self._page_tokens = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the ring was freed."""
        return self._closed

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
        """Write a page once, wholly or not at all.

        Raises PageViolation on a second write, a version out of turn, a shape or dtype that
        differs from the ring's other pages, and on a ring that was freed.
        """
        version = self._version(target)
        if version is None or target.version != version + 1:
            raise PageViolation(
                f"{target} cannot be written: {_position(version)}, and versions follow each other"
            )
        geometry = _geometry(layers)
        if not self._geometry:
            self._allocate(layers, geometry)
        elif geometry != self._geometry:
            raise PageViolation(
                f"{target}: layers are {geometry}; pages of this ring are {self._geometry}"
            )
        start = self._page_ids.index(target.page) * self._page_tokens
        rows = slice(start, start + self._page_tokens)
        for layer, keys, values in zip(layers, self._keys, self._values, strict=True):
            keys[:, rows] = layer.key_rotated.detach()
            values[:, rows] = layer.value.detach()
        self._versions[target.page] = target.version

    def read(self, pages: Sequence[PageRef]) -> tuple[LayerContext, ...]:
        """Return each layer's keys and values in the order of `pages`.

        Consecutive slots come back as a view of the buffer, unless grad is enabled; anything else
        is joined. Raises PageViolation for a page that is not committed at the version asked for.
        """
        for ref in pages:
            version = self._version(ref)
            if version is None or version < 0 or version != ref.version:
                raise PageViolation(f"{ref} cannot be read: {_position(version)}")
        runs = self._runs([self._page_ids.index(ref.page) for ref in pages])
        return tuple(
            LayerContext(_join(keys, runs), _join(values, runs))
            for keys, values in zip(self._keys, self._values, strict=True)
        )

    def close(self) -> None:
        """Free the buffers; views that were handed out keep theirs alive."""
        self._closed = True
        self._keys.clear()
        self._values.clear()

    def _version(self, ref: PageRef) -> int | None:
        return None if self._closed else self._versions.get(ref.page)

    def _allocate(self, layers: Sequence[LayerEntry], geometry: tuple[_Entry, ...]) -> None:
        tokens = {entry.shape[1] for entry in geometry}
        if len(tokens) != 1:
            raise PageViolation(f"layers of one page have {sorted(tokens)} tokens; expected equal")
        self._page_tokens = tokens.pop()
        self._geometry = geometry
        for layer in layers:
            self._keys.append(self._buffer(layer.key_rotated))
            self._values.append(self._buffer(layer.value))

    def _buffer(self, page: torch.Tensor) -> torch.Tensor:
        batch, tokens, *rest = page.shape
        return page.new_empty((batch, tokens * len(self._page_ids), *rest))

    def _runs(self, slots: list[int]) -> list[slice]:
        runs: list[slice] = []
        for slot in slots:
            start = slot * self._page_tokens
            if runs and runs[-1].stop == start:
                runs[-1] = slice(runs[-1].start, start + self._page_tokens)
            else:
                runs.append(slice(start, start + self._page_tokens))
        return runs


def _geometry(layers: Sequence[LayerEntry]) -> tuple[_Entry, ...]:
    tensors = [tensor for layer in layers for tensor in (layer.key_rotated, layer.value)]
    return tuple(_Entry(tuple(t.shape), t.dtype, t.device) for t in tensors)


def _position(version: int | None) -> str:
    if version is None:
        return "the ring has no such slot, or was freed"
    return f"the slot is at version {version}" if version >= 0 else "the slot was never written"


def _join(buffer: torch.Tensor, runs: list[slice]) -> torch.Tensor:
    parts = [buffer[:, run] for run in runs]
    if len(parts) == 1 and not torch.is_grad_enabled():
        return parts[0]
    return torch.cat(parts, dim=1)


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
        """Free a ring, once or again; using its pages afterwards is a PageViolation.

        Raises PageViolation for a ring of another pool: ids are unique in one pool only.
        """
        if ring.closed:
            return
        if self._owner.get(ring.page_ids[0]) is not ring:
            raise PageViolation(f"the ring of pages {ring.page_ids} is not of this pool")
        for page in ring.page_ids:
            del self._owner[page]
        ring.close()

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
