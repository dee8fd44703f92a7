"""Every test of the cache suite fails on a pool that breaks what it is about."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence

import pytest

from conformance.biting import bites, suite_tests
from conformance.cache import CacheSuite
from conformance.cache_pages import BAD_PAGES
from ostinato.errors import PageViolation
from ostinato.loop.contract import LayerEntry
from ostinato.memory import KVPool, KVRing, LayerContext
from ostinato.work import CacheRef, PageRef


class MiscountsPages(KVPool):
    @property
    def num_pages(self) -> int:
        return super().num_pages + 1


class ForgetsVersions(KVPool):
    def open_ring(self, num_pages: int) -> KVRing:
        ring = super().open_ring(num_pages)
        ring.page = lambda index: PageRef(page=ring.page_ids[index % num_pages], version=0)  # type: ignore[method-assign]
        return ring


class NothingIsSomething(KVPool):
    def read(self, ref: CacheRef) -> tuple[LayerContext, ...] | None:
        return super().read(ref) if ref.pages else ()


class SortsPages(KVPool):
    def read(self, ref: CacheRef) -> tuple[LayerContext, ...] | None:
        pages = sorted(ref.pages, key=lambda page: (page.version, page.page))
        return super().read(CacheRef(pages=tuple(pages)))


class Overwrites(KVPool):
    """Allows a second write, and any version."""

    def commit(self, target: PageRef, layers: Sequence[LayerEntry]) -> None:
        ring = self._owner[target.page]
        ring._versions[target.page] = target.version - 1
        super().commit(target, layers)


class ReadsWhateverIsThere(KVPool):
    def read(self, ref: CacheRef) -> tuple[LayerContext, ...] | None:
        pages = []
        for page in ref.pages:
            versions = self._owner[page.page]._versions
            versions[page.page] = max(versions[page.page], 0)
            pages.append(PageRef(page=page.page, version=versions[page.page]))
        return super().read(CacheRef(pages=tuple(pages)))


class DropsBadPages(KVPool):
    def commit(self, target: PageRef, layers: Sequence[LayerEntry]) -> None:
        try:
            super().commit(target, layers)
        except PageViolation:
            return


class KeepsTheCallersTensors(KVPool):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[PageRef, Sequence[LayerEntry]] = {}

    def commit(self, target: PageRef, layers: Sequence[LayerEntry]) -> None:
        super().commit(target, layers)
        self.kept[target] = layers

    def read(self, ref: CacheRef) -> tuple[LayerContext, ...] | None:
        layers = self.kept[ref.pages[0]]
        return tuple(LayerContext(layer.key_rotated, layer.value) for layer in layers)


class SharesBuffers(KVPool):
    """Gives every ring the memory of the first, as a pool that recycles too early does."""

    first: KVRing | None = None

    def open_ring(self, num_pages: int) -> KVRing:
        ring = super().open_ring(num_pages)
        self.first = self.first or ring
        ring._keys, ring._values = self.first._keys, self.first._values
        ring._geometry, ring._page_tokens = self.first._geometry, self.first._page_tokens
        return ring


class ClosesNothing(KVPool):
    def close_ring(self, ring: KVRing) -> None:
        return


class ReusesIds(KVPool):
    def close_ring(self, ring: KVRing) -> None:
        super().close_ring(ring)
        self._ids = itertools.count()


class CountsNoBytes(KVPool):
    @property
    def num_bytes(self) -> int:
        return 0


class ClosesForeignRings(KVPool):
    def close_ring(self, ring: KVRing) -> None:
        ring.close()


class UnknownIsNothing(KVPool):
    def read(self, ref: CacheRef) -> tuple[LayerContext, ...] | None:
        return super().read(ref) if ref.pages and ref.pages[0].page in self._owner else None


CACHE_FAULTS: dict[str, type[KVPool]] = {
    "test_any_order_of_calls_agrees_with_a_dict": MiscountsPages,
    "test_a_page_is_a_value_with_a_version": ForgetsVersions,
    "test_no_pages_are_no_context": NothingIsSomething,
    "test_pages_come_back_in_the_order_asked_for": SortsPages,
    "test_writing_twice_is_refused_and_changes_nothing": Overwrites,
    "test_a_version_out_of_turn_is_refused_and_changes_nothing": Overwrites,
    "test_a_page_that_was_replaced_is_not_read": ReadsWhateverIsThere,
    "test_a_page_that_was_never_written_is_not_read": ReadsWhateverIsThere,
    "test_a_page_of_another_shape_is_refused_and_changes_nothing": DropsBadPages,
    "test_layers_of_a_first_page_agree": DropsBadPages,
    "test_what_is_committed_is_a_copy": KeepsTheCallersTensors,
    "test_requests_share_no_memory": SharesBuffers,
    "test_a_ring_that_is_closed_is_gone": ClosesNothing,
    "test_page_ids_are_not_used_again": ReusesIds,
    "test_bytes_and_pages_are_counted": CountsNoBytes,
    "test_a_ring_of_another_pool_frees_nothing_here": ClosesForeignRings,
    "test_an_unknown_page": UnknownIsNothing,
    "test_pages_hold_values_and_not_graphs": KeepsTheCallersTensors,
}


def test_every_test_of_the_cache_suite_has_a_fault() -> None:
    assert set(CACHE_FAULTS) == suite_tests(CacheSuite)


@pytest.mark.parametrize("name", CACHE_FAULTS)
def test_the_cache_suite_bites(name: str) -> None:
    suite = type("Broken", (CacheSuite,), {"pool": CACHE_FAULTS[name]})()
    test: Callable[..., object] = getattr(suite, name)
    cases = BAD_PAGES if "bad" in inspect.signature(test).parameters else ((),)
    for case in cases:
        bites(lambda case=case: test(*((case,) if case else ())))
