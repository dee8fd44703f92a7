"""Random weights whose bits no processor chooses: for small folders that are written anew anywhere.

A library's normal draws differ in their last bits from one set of vector instructions to another,
and so would the weights and everything kept of what they give. Here values come from a hash and are
whole multiples of a power of two, so that they are the same everywhere, in float16 as in float32.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor, nn

# Eleven bits, the significand of float16 (IEEE 754).
_LEVELS = 1 << 10


def uniform(shape: tuple[int, ...], key: str) -> Tensor:
    """Draw float32 multiples of 2**-10, uniform over [-1, 1); one key gives one draw.

    Source of the bits: SHAKE-256 (FIPS 202) of the key, two bytes a value.
    """
    count = math.prod(shape)
    drawn = np.frombuffer(hashlib.shake_256(key.encode()).digest(2 * count), dtype="<u2")
    whole = (drawn >> 5).astype(np.int32) - _LEVELS
    return torch.from_numpy((whole / _LEVELS).astype(np.float32)).reshape(shape)


@torch.no_grad()
def fill(module: nn.Module, key: str) -> None:
    """Draw every parameter anew that an initialisation drew; constants stay as they are.

    The new values keep the deviation of the old to within the square root of two, since their
    bound is the power of two nearest to that of a uniform draw of the same deviation.
    """
    for name, parameter in module.named_parameters():
        if bool((parameter == parameter.view(-1)[0]).all()):
            continue  # the ones of a norm, the zeros of a bias
        bound = 2.0 ** round(math.log2(float(parameter.double().std()) * math.sqrt(3.0)))
        parameter.copy_(uniform(tuple(parameter.shape), f"{key}/{name}") * bound)
