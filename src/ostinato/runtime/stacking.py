"""When calls of different requests share a forward; whenever they do, each keeps its bytes."""

from __future__ import annotations

from enum import StrEnum


class Stacking(StrEnum):
    """when_it_pays: where the cost model expects the stack to take less than its parts.

    always: wherever calls agree and the processor's batch rules allow it; for measurements and
    gates, which must not depend on what the cost model has learnt.
    """

    WHEN_IT_PAYS = "when_it_pays"
    ALWAYS = "always"
