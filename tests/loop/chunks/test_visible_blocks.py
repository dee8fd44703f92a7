"""Which blocks are seen: one function, so the trainer and every executor agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.card import AttentionContext
from ostinato.errors import InvalidCard
from ostinato.loop.chunks.visible import visible_blocks

SELF_FORCING = AttentionContext.SELF_FORCING


def test_known_windows() -> None:
    seen = [visible_blocks(SELF_FORCING, block, window_blocks=3) for block in range(5)]
    assert seen == [(), (0,), (0, 1), (1, 2), (2, 3)]


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_the_window_holds_the_newest_finished_blocks(block: int, window_blocks: int) -> None:
    seen = visible_blocks(SELF_FORCING, block, window_blocks=window_blocks)
    assert list(seen) == sorted(seen)
    assert len(seen) == min(block, window_blocks - 1)
    assert all(0 <= other < block for other in seen)
    assert not seen or seen[-1] == block - 1
    following = visible_blocks(SELF_FORCING, block + 1, window_blocks=window_blocks)
    assert set(following) <= {*seen, block}, "a block that was out of sight stays out of sight"


def test_a_context_without_finished_blocks() -> None:
    with pytest.raises(InvalidCard, match="'bidirectional'"):
        visible_blocks(AttentionContext.BIDIRECTIONAL, 0, window_blocks=3)
