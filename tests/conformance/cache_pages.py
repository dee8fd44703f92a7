"""Pages for the cache suite: seeded keys and values, and a pool held against a dict of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ostinato.errors import PageViolation
from ostinato.work import CacheRef, PageId, PageRef

# B batch, L token, N head, E head width
TOKENS, LAYERS, HEADS, WIDTH = 3, 2, 2, 4
PAGE_BYTES = LAYERS * 2 * TOKENS * HEADS * WIDTH * 4


class Entry(NamedTuple):
    """One layer of a page: float32 [B, L, N, E] each."""

    key_rotated: torch.Tensor
    value: torch.Tensor


Page = tuple[Entry, ...]


class Layer(Protocol):
    """One layer of what was read, oldest page first."""

    @property
    def keys_rotated(self) -> torch.Tensor: ...
    @property
    def values(self) -> torch.Tensor: ...


class Ring(Protocol):
    """One request's pages."""

    @property
    def page_ids(self) -> tuple[PageId, ...]: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def page(self, index: int) -> PageRef: ...


class Pool(Protocol):
    """What the suite is about; R is the pool's own class of ring."""

    @property
    def num_pages(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def open_ring(self, num_pages: int) -> Ring: ...
    # Any: a pool takes back rings of its own class alone.
    def close_ring(self, ring: Any) -> None: ...
    def commit(self, target: PageRef, layers: Sequence[Entry]) -> None: ...
    def read(self, ref: CacheRef) -> tuple[Layer, ...] | None: ...


def make_page(seed: int, *, batch: int = 1, tokens: int = TOKENS, layers: int = LAYERS) -> Page:
    """Return seeded random keys and values."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, batch, tokens, HEADS, WIDTH)
    return tuple(Entry(*torch.randn(shape, generator=generator)) for _ in range(layers))


BAD_PAGES: tuple[tuple[str, Page], ...] = (
    ("tokens", make_page(7, tokens=TOKENS + 1)),
    ("a batch that would broadcast", make_page(7, batch=2)),
    ("too few layers", make_page(7, layers=1)),
    ("too many layers", make_page(7, layers=3)),
    ("second layer alone", (make_page(7)[0], make_page(7, tokens=1)[0])),
    ("a value that would broadcast", tuple(Entry(k, v[:, :1]) for k, v in make_page(7))),
    ("dtype", tuple(Entry(k.double(), v.double()) for k, v in make_page(7))),
    ("none", ()),
)


def same(found: tuple[Layer, ...] | None, pages: Sequence[Page]) -> bool:
    """Tell whether what was read is these pages, joined in order."""
    assert found is not None
    assert len(found) == LAYERS
    return all(
        torch.equal(layer.keys_rotated, torch.cat([page[i].key_rotated for page in pages], dim=1))
        and torch.equal(layer.values, torch.cat([page[i].value for page in pages], dim=1))
        for i, layer in enumerate(found)
    )


def refs(ring: Ring, indices: Sequence[int]) -> CacheRef:
    """Name pages of a ring by the order in which they were written."""
    return CacheRef(pages=tuple(ring.page(index) for index in indices))


def filled(pool: Pool, num_pages: int, count: int, seed: int = 0) -> tuple[Ring, list[Page]]:
    """Open a ring and write `count` pages."""
    ring, pages = pool.open_ring(num_pages), [make_page(seed + i) for i in range(count)]
    for index, page in enumerate(pages):
        pool.commit(ring.page(index), page)
    return ring, pages


@contextmanager
def refused() -> Iterator[None]:
    """Expect a PageViolation that says what was wrong."""
    with pytest.raises(PageViolation) as caught:
        yield
    assert len(str(caught.value)) > 20


class PagesAgainstADict(RuleBasedStateMachine):
    """Any rings, any commits and reads: a dict of (ring, page index) says what must come back."""

    rings = Bundle("rings")

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.model: dict[int, list[Page]] = {}
        self.capacity: dict[int, int] = {}
        self.freed: list[Ring] = []
        self.seed = 0

    @rule(target=rings, capacity=st.integers(1, 5))
    def open(self, capacity: int) -> Ring:
        ring = self.pool.open_ring(capacity)
        self.model[id(ring)], self.capacity[id(ring)] = [], capacity
        return ring

    @rule(ring=rings)
    def write_next(self, ring: Ring) -> None:
        pages = self.model[id(ring)]
        self.seed += 1
        page = make_page(self.seed)
        self.pool.commit(ring.page(len(pages)), page)
        pages.append(page)

    @rule(ring=rings, ahead=st.integers(-6, 6))
    def write_out_of_turn(self, ring: Ring, ahead: int) -> None:
        """Each slot takes its own next version and no other."""
        index = len(self.model[id(ring)]) + ahead
        capacity, written = self.capacity[id(ring)], len(self.model[id(ring)])
        if index < 0 or written <= index < written + capacity:
            return
        with refused():
            self.pool.commit(ring.page(index), make_page(0))

    @rule(ring=rings, data=st.data())
    def read_live(self, ring: Ring, data: st.DataObject) -> None:
        pages, capacity = self.model[id(ring)], self.capacity[id(ring)]
        live = range(max(0, len(pages) - capacity), len(pages))
        if not live:
            return
        start = data.draw(st.sampled_from(live))
        window = range(start, data.draw(st.integers(start, live[-1])) + 1)
        scattered = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=4))
        for indices in (window, scattered):
            found = self.pool.read(refs(ring, indices))
            assert same(found, [pages[index] for index in indices])

    @rule(ring=rings, distance=st.integers(1, 12))
    def read_dead(self, ring: Ring, distance: int) -> None:
        pages, capacity = self.model[id(ring)], self.capacity[id(ring)]
        overwritten, unwritten = len(pages) - capacity - distance, len(pages) + distance - 1
        for index in (overwritten, unwritten):
            if index >= 0:
                with refused():
                    self.pool.read(refs(ring, [index]))

    @rule(one=rings, other=rings)
    def read_across(self, one: Ring, other: Ring) -> None:
        if one is other or not (self.model[id(one)] and self.model[id(other)]):
            return
        mixed = (one.page(len(self.model[id(one)]) - 1), other.page(len(self.model[id(other)]) - 1))
        with refused():
            self.pool.read(CacheRef(pages=mixed))

    @rule(ring=consumes(rings))
    def close(self, ring: Ring) -> None:
        self.pool.close_ring(ring)
        self.pool.close_ring(ring)
        del self.model[id(ring)]
        self.freed.append(ring)

    @invariant()
    def freed_pages_are_gone(self) -> None:
        for ring in self.freed:
            assert ring.num_bytes == 0
            with refused():
                self.pool.read(refs(ring, [0]))
            with refused():
                self.pool.commit(ring.page(0), make_page(0))

    @invariant()
    def what_is_held_is_counted(self) -> None:
        assert self.pool.num_pages == sum(self.capacity[key] for key in self.model)
        written = sum(self.capacity[key] for key, pages in self.model.items() if pages)
        assert self.pool.num_bytes == written * PAGE_BYTES
