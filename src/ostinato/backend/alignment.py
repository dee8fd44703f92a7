"""Move weights to aligned memory, because where a weight lies changes the bits of float32 results.

Safetensors maps a file as it is, so parameters start at odd offsets and a matrix product over them
rounds differently (by 2e-6) from one over a copy. Both sides of a comparison are aligned first.
"""

from __future__ import annotations

import torch
from torch import nn

# One cache line, and the widest vector register (AVX-512).
ALIGNMENT_BYTES = 64


def is_aligned(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor's data start at a multiple of `ALIGNMENT_BYTES`."""
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0


def align_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself where it is aligned and contiguous, else an aligned copy of it."""
    if tensor.device.type == "meta" or (is_aligned(tensor) and tensor.is_contiguous()):
        return tensor
    # torch's CPU allocator gives 64-byte boundaries, but an allocator can be replaced.
    slack = ALIGNMENT_BYTES // tensor.element_size()
    storage = torch.empty(tensor.numel() + slack, dtype=tensor.dtype, device=tensor.device)
    offset = -storage.data_ptr() % ALIGNMENT_BYTES // tensor.element_size()
    return storage[offset : offset + tensor.numel()].view(tensor.shape).copy_(tensor.detach())


def align_parameters(module: nn.Module) -> None:
    """Align every parameter and buffer of `module` in place.

    Values, dtypes, requires_grad and the parameter objects stay, and so do ties and whatever an
    optimizer holds.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = align_tensor(tensor.data)
