"""The one way to build a library's modules: alone in the process, whatever its globals are.

While accelerate, diffusers and transformers build a module they patch attributes of `nn.Module` and
of `torch.nn.init` for the whole process. Two loads at a time restore each other's patches, and
every module made afterwards, by anyone, lies on the meta device. Nothing but a process-wide lock
guards a process-wide patch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Reentrant, so that a loader may be made of loaders.
_LOCK = threading.RLock()


@contextmanager
def loading() -> Iterator[None]:
    """Build or load modules of a library: one thread at a time, float32, the caller's seed kept.

    Tensors without a dtype are float32 inside, since the libraries make tables and masks that way.
    The default dtype and the state of torch's CPU generator are the caller's again afterwards.
    """
    with _LOCK, torch.random.fork_rng(devices=()):
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
