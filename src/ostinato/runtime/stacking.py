"""When calls of different requests share a forward, and what each of them keeps when they do."""

from __future__ import annotations

from enum import StrEnum

MAX_BATCH = 8  # calls of a stack, where an engine is not told otherwise


class Stacking(StrEnum):
    """when_it_pays: where the cost model expects the stack to take less than its parts.

    always: wherever calls agree and the rules of batching allow it; for measurements and gates,
    which must not depend on what the cost model has learnt.
    """

    WHEN_IT_PAYS = "when_it_pays"
    ALWAYS = "always"


class Batching(StrEnum):
    """exact: only stacks that leave every request its bytes, by rules measured on this processor.

    fast: any stack of equal calls, for models whose card declares a tolerance in the dtype of its
    weights (`ModelCard.fast_batch_tolerance`); all others are batched exactly.
    `Provenance.fast_steps` tells which steps it touched.
    """

    EXACT = "exact"
    FAST = "fast"
