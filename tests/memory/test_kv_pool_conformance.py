"""The K/V pool passes the cache suite."""

from __future__ import annotations

from conformance.cache import CacheSuite
from ostinato.memory import KVPool


class TestKVPoolConformance(CacheSuite):
    pool = KVPool
