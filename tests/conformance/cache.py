"""The suite that every pool of key and value pages passes.

    class TestMyPool(CacheSuite):
        pool = MyPool

A pool hands out rings with `open_ring(num_pages)` and takes them back with `close_ring`; a ring
names its pages in the order of use with `page(index)` and reuses slots under the next version.
"""

from __future__ import annotations

from typing import ClassVar, cast

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.cache_pages import (
    BAD_PAGES,
    PAGE_BYTES,
    Entry,
    Layer,
    Page,
    PagesAgainstADict,
    Pool,
    filled,
    make_page,
    refs,
    refused,
    same,
)
from ostinato.work import CacheRef, PageId, PageRef


class CacheSuite:
    """What is asked of a pool; `pool` makes an empty one."""

    pool: ClassVar[type[Pool]]

    def make(self) -> Pool:
        return type(self).pool()

    def test_any_order_of_calls_agrees_with_a_dict(self) -> None:
        machine = cast("type[PagesAgainstADict]", lambda: PagesAgainstADict(self.make()))
        run_state_machine_as_test(
            machine,
            settings=settings(max_examples=30, stateful_step_count=20, deadline=None),
        )

    def test_a_page_is_a_value_with_a_version(self) -> None:
        ring = self.make().open_ring(3)
        assert ring.page(4) == ring.page(4)
        assert ring.page(4) == PageRef(page=ring.page_ids[1], version=1)
        assert ring.page(1) == PageRef(page=ring.page_ids[1], version=0)

    def test_no_pages_are_no_context(self) -> None:
        assert self.make().read(CacheRef(pages=())) is None

    def test_pages_come_back_in_the_order_asked_for(self) -> None:
        """Key order changes the bits of attention, so it is the caller's alone."""
        pool = self.make()
        ring, pages = filled(pool, num_pages=3, count=5)
        for order in ([2, 3, 4], [4, 2], [3, 3], [4]):
            assert same(pool.read(refs(ring, order)), [pages[index] for index in order])

    def test_writing_twice_is_refused_and_changes_nothing(self) -> None:
        pool = self.make()
        ring, pages = filled(pool, num_pages=2, count=1)
        with refused():
            pool.commit(ring.page(0), make_page(9))
        assert same(pool.read(refs(ring, [0])), pages)

    def test_a_version_out_of_turn_is_refused_and_changes_nothing(self) -> None:
        pool = self.make()
        ring, pages = filled(pool, num_pages=2, count=2)
        for index in (4, 6):  # versions 2 and 3 of the slot that holds version 0
            with refused():
                pool.commit(ring.page(index), make_page(9))
        assert same(pool.read(refs(ring, [0, 1])), pages)

    def test_a_page_that_was_replaced_is_not_read(self) -> None:
        pool = self.make()
        ring, pages = filled(pool, num_pages=2, count=3)
        with refused():
            pool.read(refs(ring, [0, 1]))
        assert same(pool.read(refs(ring, [1, 2])), pages[1:])

    def test_a_page_that_was_never_written_is_not_read(self) -> None:
        pool = self.make()
        ring, _ = filled(pool, num_pages=3, count=1)
        for index in (1, 3):
            with refused():
                pool.read(refs(ring, [0, index]))

    @pytest.mark.parametrize("bad", BAD_PAGES, ids=lambda case: case[0])
    def test_a_page_of_another_shape_is_refused_and_changes_nothing(
        self, bad: tuple[str, Page]
    ) -> None:
        """Slot 0 still holds page 0 when page 2, which would take its place, is refused."""
        pool = self.make()
        ring, pages = filled(pool, num_pages=2, count=2)
        with refused():
            pool.commit(ring.page(2), bad[1])
        assert same(pool.read(refs(ring, [0, 1])), pages)
        page = make_page(8)
        pool.commit(ring.page(2), page)
        assert same(pool.read(refs(ring, [1, 2])), [pages[1], page])

    def test_layers_of_a_first_page_agree(self) -> None:
        pool = self.make()
        ring = pool.open_ring(2)
        with refused():
            pool.commit(ring.page(0), (make_page(0)[0], make_page(0, tokens=1)[0]))
        pool.commit(ring.page(0), make_page(0))

    def test_what_is_committed_is_a_copy(self) -> None:
        """The caller's tensors are the caller's to change."""
        pool = self.make()
        ring, expected = pool.open_ring(2), make_page(0)
        page = make_page(0)
        pool.commit(ring.page(0), page)
        for entry in page:
            entry.key_rotated.zero_()
            entry.value.zero_()
        assert same(pool.read(refs(ring, [0])), [expected])

    @torch.no_grad()  # with grad, what is read is a copy
    def test_requests_share_no_memory(self) -> None:
        """Not while both live, and not when one opens after the other has closed."""
        pool = self.make()
        one, pages = filled(pool, num_pages=2, count=2)
        other, others = filled(pool, num_pages=2, count=2, seed=50)
        assert not set(one.page_ids) & set(other.page_ids)
        held = pool.read(refs(one, [0, 1]))
        theirs = pool.read(refs(other, [0, 1]))
        assert same(held, pages)
        assert not _memory(held) & _memory(theirs)
        pool.close_ring(one)
        _, _ = filled(pool, num_pages=2, count=2, seed=90)
        assert same(held, pages), "a view that was handed out changed under its reader"
        assert same(pool.read(refs(other, [0, 1])), others)

    def test_a_ring_that_is_closed_is_gone(self) -> None:
        pool = self.make()
        ring, _ = filled(pool, num_pages=2, count=1)
        pool.close_ring(ring)
        pool.close_ring(ring)
        assert ring.closed
        with refused():
            pool.read(refs(ring, [0]))
        with refused():
            pool.commit(ring.page(1), make_page(1))
        assert (pool.num_pages, pool.num_bytes, ring.num_bytes) == (0, 0, 0)

    def test_page_ids_are_not_used_again(self) -> None:
        """Else a plan of a request that ended could read another's pages."""
        pool, seen = self.make(), set[PageId]()
        for _ in range(4):
            ring = pool.open_ring(3)
            assert not seen & set(ring.page_ids)
            seen |= set(ring.page_ids)
            pool.close_ring(ring)

    def test_bytes_and_pages_are_counted(self) -> None:
        pool = self.make()
        rings = [filled(pool, num_pages=capacity, count=1)[0] for capacity in (2, 3)]
        assert pool.num_pages == 5
        assert pool.num_bytes == 5 * PAGE_BYTES == sum(ring.num_bytes for ring in rings)
        pool.close_ring(rings[0])
        assert (pool.num_pages, pool.num_bytes) == (3, 3 * PAGE_BYTES)

    def test_a_ring_of_another_pool_frees_nothing_here(self) -> None:
        ours, theirs = self.make(), self.make()
        ring, pages = filled(ours, num_pages=2, count=1)
        foreign, others = filled(theirs, num_pages=2, count=1, seed=50)
        with refused():
            ours.close_ring(foreign)
        assert not foreign.closed
        assert same(ours.read(refs(ring, [0])), pages)
        assert same(theirs.read(refs(foreign, [0])), others)

    def test_an_unknown_page(self) -> None:
        pool = self.make()
        nowhere = PageRef(page=PageId(99), version=0)
        with refused():
            pool.read(CacheRef(pages=(nowhere,)))
        with refused():
            pool.commit(nowhere, make_page(0))

    def test_pages_hold_values_and_not_graphs(self) -> None:
        """Training keeps what it read for the backward pass, while later pages are committed."""
        pool = self.make()
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
        assert torch.allclose(weight.grad, 2 * first[0].key_rotated.square().sum())


def _memory(found: tuple[Layer, ...] | None) -> set[int]:
    assert found is not None
    return {
        tensor.untyped_storage().data_ptr()
        for layer in found
        for tensor in (layer.keys_rotated, layer.values)
    }
