"""The library functions that are probed, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

# Each is a function of torch.nn.functional; its arguments differ from kernel to kernel.
Kernel: TypeAlias = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What is probed; replace one to see what the probe says of it."""

    linear: Kernel = F.linear
    silu: Kernel = F.silu
    gelu: Kernel = F.gelu
    sin: Kernel = torch.sin
    attention: Kernel = F.scaled_dot_product_attention
    layer_norm: Kernel = F.layer_norm
    rms_norm: Kernel = F.rms_norm
    group_norm: Kernel = F.group_norm
    conv1d: Kernel = F.conv1d
    conv2d: Kernel = F.conv2d
    conv3d: Kernel = F.conv3d
