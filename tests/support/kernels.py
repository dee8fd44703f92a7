"""See which torch operations ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode

# Making a host scalar and taking a view of a tensor: they compute nothing.
FREE = frozenset({"aten::select.int", "aten::slice.Tensor", "aten::lift_fresh", "aten::detach"})


class _Recorder(TorchDispatchMode):
    def __init__(self, ran: list[str]) -> None:
        super().__init__()
        self._ran = ran

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = f"{func.name()}"
        if name not in FREE:
            self._ran.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def kernels_of() -> Iterator[list[str]]:
    """Collect the names of the operations that compute something, as they run."""
    ran: list[str] = []
    with _Recorder(ran):
        yield ran
