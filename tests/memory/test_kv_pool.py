"""K/V pages: written once as a whole, read at their version, freed for good."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ostinato.errors import PageViolation
from ostinato.memory import KVPool, KVRing, LayerContext
from ostinato.work import CacheRef, PageId, PageRef

TOKENS, LAYERS = 3, 2
PAGE_BYTES = LAYERS * 2 * 1 * TOKENS * 2 * 4 * 4


class Entry(NamedTuple):
    key_rotated: torch.Tensor
    value: torch.Tensor


Page = tuple[Entry, ...]


def make_page(seed: int, *, batch: int = 1, tokens: int = TOKENS, layers: int = LAYERS) -> Page:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, batch, tokens, 2, 4)
    return tuple(Entry(*torch.randn(shape, generator=generator)) for _ in range(layers))


def joined(pages: list[Page]) -> list[LayerContext]:
    return [
        LayerContext(
            torch.cat([page[layer].key_rotated for page in pages], dim=1),
            torch.cat([page[layer].value for page in pages], dim=1),
        )
        for layer in range(LAYERS)
    ]


def same(found: tuple[LayerContext, ...] | None, expected: list[LayerContext]) -> bool:
    assert found is not None
    assert len(found) == len(expected)
    return all(
        torch.equal(mine, theirs)
        for ours, others in zip(found, expected, strict=True)
        for mine, theirs in zip(ours, others, strict=True)
    )


def refs(ring: KVRing, indices: range | list[int]) -> CacheRef:
    return CacheRef(pages=tuple(ring.page(index) for index in indices))


def filled(pool: KVPool, num_pages: int, count: int) -> tuple[KVRing, list[Page]]:
    ring, pages = pool.open_ring(num_pages), [make_page(i) for i in range(count)]
    for index, page in enumerate(pages):
        pool.commit(ring.page(index), page)
    return ring, pages


class PagesAgainstADict(RuleBasedStateMachine):
    """Any rings, any commits and reads: a dict of (ring, page index) says what must come back."""

    rings = Bundle("rings")

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool()
        self.model: dict[int, list[Page]] = {}
        self.capacity: dict[int, int] = {}
        self.freed: list[KVRing] = []
        self.seed = 0

    @rule(target=rings, capacity=st.integers(1, 5))
    def open(self, capacity: int) -> KVRing:
        ring = self.pool.open_ring(capacity)
        self.model[id(ring)], self.capacity[id(ring)] = [], capacity
        return ring

    @rule(ring=rings)
    def write_next(self, ring: KVRing) -> None:
        pages = self.model[id(ring)]
        self.seed += 1
        page = make_page(self.seed)
        self.pool.commit(ring.page(len(pages)), page)
        pages.append(page)

    @rule(ring=rings, ahead=st.integers(-6, 6))
    def write_out_of_turn(self, ring: KVRing, ahead: int) -> None:
        """Each slot takes its own next version and no other."""
        index = len(self.model[id(ring)]) + ahead
        capacity, written = self.capacity[id(ring)], len(self.model[id(ring)])
        if index < 0 or written <= index < written + capacity:
            return
        with pytest.raises(PageViolation):
            self.pool.commit(ring.page(index), make_page(0))

    @rule(ring=rings, data=st.data())
    def read_live(self, ring: KVRing, data: st.DataObject) -> None:
        pages, capacity = self.model[id(ring)], self.capacity[id(ring)]
        live = range(max(0, len(pages) - capacity), len(pages))
        if not live:
            return
        start = data.draw(st.sampled_from(live))
        window = range(start, data.draw(st.integers(start, live[-1])) + 1)
        scattered = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=4))
        for indices in (window, scattered):
            found = self.pool.read(refs(ring, indices))
            assert same(found, joined([pages[index] for index in indices]))

    @rule(ring=rings, distance=st.integers(1, 12))
    def read_dead(self, ring: KVRing, distance: int) -> None:
        pages, capacity = self.model[id(ring)], self.capacity[id(ring)]
        overwritten, unwritten = len(pages) - capacity - distance, len(pages) + distance - 1
        for index in (overwritten, unwritten):
            if index >= 0:
                with pytest.raises(PageViolation, match="cannot be read"):
                    self.pool.read(refs(ring, [index]))

    @rule(one=rings, other=rings)
    def read_across(self, one: KVRing, other: KVRing) -> None:
        if one is other or not (self.model[id(one)] and self.model[id(other)]):
            return
        mixed = (one.page(len(self.model[id(one)]) - 1), other.page(len(self.model[id(other)]) - 1))
        with pytest.raises(PageViolation):
            self.pool.read(CacheRef(pages=mixed))

    @rule(ring=consumes(rings))
    def close(self, ring: KVRing) -> None:
        self.pool.close_ring(ring)
        self.pool.close_ring(ring)
        del self.model[id(ring)]
        self.freed.append(ring)

    @invariant()
    def freed_pages_are_gone(self) -> None:
        for ring in self.freed:
            assert ring.num_bytes == 0
            for use in (
                lambda ring=ring: self.pool.read(refs(ring, [0])),
                lambda ring=ring: self.pool.commit(ring.page(0), make_page(0)),
                lambda ring=ring: ring.read([ring.page(0)]),
                lambda ring=ring: ring.commit(ring.page(0), make_page(0)),
            ):
                with pytest.raises(PageViolation):
                    use()

    @invariant()
    def what_is_held_is_counted(self) -> None:
        assert self.pool.num_pages == sum(self.capacity[key] for key in self.model)
        written = sum(self.capacity[key] for key, pages in self.model.items() if pages)
        assert self.pool.num_bytes == written * PAGE_BYTES


PagesAgainstADict.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
test_pages_against_a_dict = PagesAgainstADict.TestCase


@torch.no_grad()
def test_a_window_that_does_not_wrap_is_a_view() -> None:
    pool = KVPool()
    ring, pages = filled(pool, num_pages=4, count=4)
    found = pool.read(refs(ring, range(1, 4)))
    again = pool.read(refs(ring, range(1, 4)))
    assert found is not None
    assert again is not None
    assert same(found, joined(pages[1:4]))
    for mine, theirs in zip(found, again, strict=True):
        assert mine.keys_rotated.data_ptr() == theirs.keys_rotated.data_ptr()
        assert mine.values.data_ptr() == theirs.values.data_ptr()


@torch.no_grad()
def test_a_window_that_wraps_is_joined_in_the_order_asked_for() -> None:
    pool = KVPool()
    ring, pages = filled(pool, num_pages=4, count=6)
    assert same(pool.read(refs(ring, range(2, 6))), joined(pages[2:6]))
    assert same(pool.read(refs(ring, [5, 2])), joined([pages[5], pages[2]]))


def test_no_pages_are_no_context() -> None:
    assert KVPool().read(CacheRef(pages=())) is None


def test_a_page_is_a_value_with_a_version() -> None:
    ring = KVPool().open_ring(3)
    assert ring.page(4) == ring.page(4)
    assert ring.page(4) == PageRef(page=ring.page_ids[1], version=1)
    assert ring.page(1) == PageRef(page=ring.page_ids[1], version=0)


def test_writing_twice_is_refused_and_changes_nothing() -> None:
    pool = KVPool()
    ring, pages = filled(pool, num_pages=2, count=1)
    with pytest.raises(PageViolation, match="version 0"):
        pool.commit(ring.page(0), make_page(9))
    assert same(pool.read(refs(ring, [0])), joined(pages))


BAD_PAGES = {
    "tokens": make_page(7, tokens=TOKENS + 1),
    "a batch that would broadcast": make_page(7, batch=2),
    "too few layers": make_page(7, layers=1),
    "too many layers": make_page(7, layers=3),
    "second layer alone": (make_page(7)[0], make_page(7, tokens=1)[0]),
    "a value that would broadcast": tuple(Entry(k, v[:, :1]) for k, v in make_page(7)),
    "dtype": tuple(Entry(k.double(), v.double()) for k, v in make_page(7)),
    "none": (),
}


@pytest.mark.parametrize("name", BAD_PAGES)
def test_a_page_of_another_shape_is_refused_and_changes_nothing(name: str) -> None:
    """Slot 0 still holds page 0 when page 2, which would take its place, is refused."""
    pool = KVPool()
    ring, pages = filled(pool, num_pages=2, count=2)
    with pytest.raises(PageViolation):
        pool.commit(ring.page(2), BAD_PAGES[name])
    assert same(pool.read(refs(ring, [0, 1])), joined(pages))
    page = make_page(8)
    pool.commit(ring.page(2), page)
    assert same(pool.read(refs(ring, [1, 2])), joined([pages[1], page]))


def test_a_batch_is_not_broadcast_into_a_wider_ring() -> None:
    pool = KVPool()
    ring = pool.open_ring(2)
    pool.commit(ring.page(0), make_page(0, batch=2))
    with pytest.raises(PageViolation):
        pool.commit(ring.page(1), make_page(1, batch=1))


def test_layers_of_a_first_page_agree() -> None:
    pool = KVPool()
    ring = pool.open_ring(2)
    with pytest.raises(PageViolation, match=r"\[1, 3\] tokens"):
        pool.commit(ring.page(0), (make_page(0)[0], make_page(0, tokens=1)[0]))
    pool.commit(ring.page(0), make_page(0))


def test_a_ring_of_another_pool_frees_nothing_here() -> None:
    """Page ids start at the same number in every pool."""
    ours, theirs = KVPool(), KVPool()
    ring, pages = filled(ours, num_pages=2, count=1)
    foreign = theirs.open_ring(2)
    assert foreign.page_ids == ring.page_ids
    with pytest.raises(PageViolation, match="not of this pool"):
        ours.close_ring(foreign)
    assert same(ours.read(refs(ring, [0])), joined(pages))


def test_an_unknown_page() -> None:
    pool = KVPool()
    nowhere = PageRef(page=PageId(99), version=0)
    with pytest.raises(PageViolation, match="freed or never reserved"):
        pool.read(CacheRef(pages=(nowhere,)))
    ring = pool.open_ring(1)
    with pytest.raises(PageViolation):
        ring.commit(nowhere, make_page(0))


def test_pages_hold_values_and_not_graphs() -> None:
    """Training keeps what it read for the backward pass, while later blocks are committed."""
    pool = KVPool()
    ring = pool.open_ring(2)
    weight = torch.ones((), requires_grad=True)
    with torch.enable_grad():
        first = make_page(0)
        pool.commit(ring.page(0), tuple(Entry(k * weight, v * weight) for k, v in first))
        context = pool.read(refs(ring, [0]))
        assert context is not None
        assert not context[0].keys_rotated.requires_grad
        loss = (context[0].keys_rotated * weight).square().sum()
        pool.commit(ring.page(1), make_page(1))
        loss.backward()
    assert weight.grad is not None
    expected = 2 * first[0].key_rotated.square().sum()
    assert torch.allclose(weight.grad, expected)
