"""Which finished blocks a block of streaming video attends to.

One pure function decides it for the trainer, the serial loop and every later executor, so that
they cannot disagree. Blocks are counted from 0; a block never sees a later one.
"""

from __future__ import annotations

from ostinato.card import AttentionContext
from ostinato.errors import InvalidCard


def visible_blocks(context: AttentionContext, block: int, *, window_blocks: int) -> tuple[int, ...]:
    """Return the clean blocks that `block` attends to, oldest first, itself not counted.

    self_forcing: the newest `window_blocks - 1` finished blocks (the window includes the block
    itself). Raises InvalidCard for a context in which blocks are not finished one by one.
    """
    if context is AttentionContext.SELF_FORCING:
        return tuple(range(max(0, block - window_blocks + 1), block))
    raise InvalidCard(
        f"attention context {context.value!r} has no finished blocks to look back on; "
        f"a chunk rollout needs {AttentionContext.SELF_FORCING.value!r}"
    )
