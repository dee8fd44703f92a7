"""What each tenant has had of the pool, as far as it still matters."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from ostinato.runtime.scheduler.snapshot import TenantShare


class Shares:
    """Claims against one virtual time, which start-time fair queueing calls v(t).

    The level is the least claim of those present, and it never falls. Who comes has had at least
    that much, and an absent tenant at or below it is forgotten: it would come as one that is new.
    When nobody is present, the level is the greatest claim there is, so use of a pool that was
    idle otherwise is held against nobody (Goyal, Vin and Cheng 1996, section 2.1).
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Take the tenants' weights; 1.0 for one that is not named."""
        self._weights = dict(weights)
        self._level = 0.0
        self._counts: Counter[str] = Counter()  # requests of those present
        self._present: dict[str, TenantShare] = {}
        self._absent: dict[str, TenantShare] = {}  # above the level
        self._leaving: list[tuple[float, str]] = []  # a heap: claims at which tenants went

    @property
    def present(self) -> dict[str, TenantShare]:
        """What those have had who have a request here."""
        return dict(self._present)

    def enter(self, tenant: str) -> None:
        """Count a request that has come."""
        if tenant not in self._present:
            share = self._absent.pop(tenant, None)
            if share is None:
                weight = self._weights.get(tenant, 1.0)
                share = TenantShare(weight=weight, attained_s=self._level * weight)
            self._present[tenant] = share
        self._counts[tenant] += 1

    def charge(self, tenant: str, device_s: float) -> None:
        """Charge a tenant that is present."""
        share = self._present[tenant]
        attained_s = share.attained_s + device_s
        self._present[tenant] = TenantShare(weight=share.weight, attained_s=attained_s)
        self._raise_level()

    def leave(self, tenant: str) -> None:
        """Count a request that has gone."""
        self._counts[tenant] -= 1
        if self._counts[tenant]:
            return
        del self._counts[tenant]
        share = self._absent[tenant] = self._present.pop(tenant)
        heapq.heappush(self._leaving, (share.claim, tenant))
        self._raise_level()

    def _raise_level(self) -> None:
        claims = (share.claim for share in (self._present or self._absent).values())
        least = min(claims) if self._present else max(claims)
        self._level = max(self._level, least)
        while self._leaving and self._leaving[0][0] <= self._level:
            _, tenant = heapq.heappop(self._leaving)
            share = self._absent.get(tenant)
            if share is not None and share.claim <= self._level:
                del self._absent[tenant]
