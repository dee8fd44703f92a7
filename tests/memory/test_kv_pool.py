"""K/V pages: what the pool promises beyond the cache suite - views, and rings of their own."""

from __future__ import annotations

import pytest
import torch

from conformance.cache_pages import filled, make_page, refs, same
from ostinato.errors import PageViolation
from ostinato.memory import KVPool
from ostinato.work import PageId, PageRef


@torch.no_grad()
def test_a_window_that_does_not_wrap_is_a_view() -> None:
    pool = KVPool()
    ring, pages = filled(pool, num_pages=4, count=4)
    found = pool.read(refs(ring, range(1, 4)))
    again = pool.read(refs(ring, range(1, 4)))
    assert found is not None
    assert again is not None
    assert same(found, pages[1:4])
    for mine, theirs in zip(found, again, strict=True):
        assert mine.keys_rotated.data_ptr() == theirs.keys_rotated.data_ptr()
        assert mine.values.data_ptr() == theirs.values.data_ptr()


@torch.no_grad()
def test_a_window_that_wraps_is_joined_in_the_order_asked_for() -> None:
    pool = KVPool()
    ring, pages = filled(pool, num_pages=4, count=6)
    assert same(pool.read(refs(ring, range(2, 6))), pages[2:6])
    assert same(pool.read(refs(ring, [5, 2])), [pages[5], pages[2]])


def test_a_batch_is_not_broadcast_into_a_wider_ring() -> None:
    pool = KVPool()
    ring = pool.open_ring(2)
    pool.commit(ring.page(0), make_page(0, batch=2))
    with pytest.raises(PageViolation):
        pool.commit(ring.page(1), make_page(1, batch=1))


def test_a_ring_keeps_the_rules_of_its_pool() -> None:
    """Page ids start at the same number in every pool, so a ring asks for more than the id."""
    ours, theirs = KVPool(), KVPool()
    ring, foreign = ours.open_ring(2), theirs.open_ring(2)
    assert foreign.page_ids == ring.page_ids
    with pytest.raises(PageViolation, match="not of this pool"):
        ours.close_ring(foreign)
    with pytest.raises(PageViolation, match="no such slot"):
        ring.commit(PageRef(page=PageId(99), version=0), make_page(0))
    ours.close_ring(ring)
    for use in (lambda: ring.read([ring.page(0)]), lambda: ring.commit(ring.page(0), make_page(0))):
        with pytest.raises(PageViolation):
            use()
