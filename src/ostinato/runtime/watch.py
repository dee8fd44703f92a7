"""The NaN watch: a step whose output is not finite fails its own request, by name."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import cast

import torch

from ostinato.backend.finite import is_finite
from ostinato.errors import NonFinite
from ostinato.work import WorkResult


def require_finite(result: WorkResult, where: str) -> None:
    """Look at every floating-point tensor of a result, those inside tuples too.

    Raises NonFinite that names the call, the output and where the request was.
    """
    for call, outputs in result.outputs.items():
        for name, value in outputs.items():
            for path, tensor in _tensors(value, name):
                if not is_finite(tensor):
                    raise NonFinite(f"{where} gave NaN or infinity in {path!r} of call {call!r}")


@contextmanager
def located(where: str) -> Generator[None, None, None]:
    """Say where the request was when an op or a sampler itself found NaN or infinity.

    Raises NonFinite that begins with `where`, from the one that was raised inside.
    """
    try:
        yield
    except NonFinite as error:
        raise NonFinite(f"{where}: {error}") from error


def _tensors(value: object, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield path, value
    elif isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            yield from _tensors(item, f"{path}[{index}]")
