"""Keyed randomness: noise depends on (request seed, purpose, index) and on nothing else.

A stream's key is hashed into the seed of a fresh generator, so no draw depends on what ran in
between, on the batch or on the device. Where a parity oracle dictates a generator and a draw
order, `oracle_generator` follows it instead.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseStream:
    """The randomness of one request; seed is any whole number."""

    seed: int

    def key(self, purpose: str, *index: int) -> int:
        """Return the 63-bit key of one draw; purpose is a word without a slash."""
        assert "/" not in purpose, "a slash would let two draws share a key"
        text = f"{self.seed}/{purpose}/{'/'.join(map(str, index))}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1

    def normal(self, shape: tuple[int, ...], purpose: str, *index: int) -> torch.Tensor:
        """Draw standard normal noise, float32 on the host, for one (purpose, index)."""
        generator = torch.Generator("cpu").manual_seed(self.key(purpose, *index))
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    def oracle_generator(self) -> torch.Generator:
        """Return the generator that the library's pipelines are given: seeded by the bare seed."""
        return torch.Generator("cpu").manual_seed(self.seed)
