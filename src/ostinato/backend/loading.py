"""Settings that torch and the libraries keep for a whole process: held by one at a time.

While accelerate, diffusers and transformers build a module they patch attributes of `nn.Module` and
of `torch.nn.init` for the whole process. Two loads at a time restore each other's patches, and
every module made afterwards, by anyone, lies on the meta device. The default dtype and the
precision of float32 products are the process's as well. Nothing but a process-wide lock guards
what is process-wide, and it must be one: two that restore each other's values would be none.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import torch

# Reentrant, so that a loader may be made of loaders and a turn may load.
_LOCK = threading.RLock()


def holds_settings() -> bool:
    """Tell whether this thread holds the settings: then no engine can take a turn."""
    return _LOCK._is_owned()  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def process_settings() -> Generator[None, None, None]:
    """Be alone with the process's settings: tensors float32 by default, float32 products exact.

    The caller's own settings are back afterwards.
    """
    with _LOCK:
        dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
        _set(torch.float32, "highest")
        try:
            yield
        finally:
            _set(dtype, precision)


def _set(dtype: torch.dtype, precision: str) -> None:
    """Set what differs: writing costs more than reading, and every turn comes here."""
    if torch.get_default_dtype() is not dtype:
        torch.set_default_dtype(dtype)
    if torch.get_float32_matmul_precision() != precision:
        torch.set_float32_matmul_precision(precision)


@contextmanager
def loading() -> Generator[None, None, None]:
    """Build or load modules of a library: one thread at a time, the caller's seed kept."""
    with process_settings(), torch.random.fork_rng(devices=()):
        yield
