"""Weights: what is in memory is what lies on disk, bit for bit, and aligned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from safetensors.torch import load_file
from torch import nn

from ostinato.backend.alignment import is_aligned
from ostinato.backend.checkpoint import weight_files
from ostinato.parity.folders import WeightFolder, weight_folders
from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.perturb import module_of
from ostinato.parity.subject import Subject
from ostinato.parity.values import equal_bits

NAME = "weights"
_LISTED = 3


def weights(subject: Subject) -> GateResult:
    """Hold every resident tensor of every component against its file.

    Raises NothingMeasured for a model without a weight, InvalidCard for a component that does not
    show its module.
    """
    resident, faults, count = subject.resident(), list[str](), 0
    allowed = {getattr(torch, subject.card.precision.weights), torch.float32}
    for each in weight_folders(subject.source):
        module = module_of(resident.component(each.name), each.name)
        count += len(module.state_dict())
        faults += [f"{each.name}.{fault}" for fault in _faults(module, _read(each), allowed)]
    if count == 0:
        raise NothingMeasured("no component holds a weight")
    more = f" and {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
    return GateResult(
        name=NAME,
        rung=Rung.FILES,
        passed=not faults,
        measured=count,
        message=(
            f"{count} tensors equal their files bit for bit, and are aligned"
            if not faults
            else "; ".join(faults[:_LISTED]) + more
        ),
        detail={"faults": faults},
    )


def _read(folder: WeightFolder) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(folder.path, folder.stem):
        tensors |= load_file(file)
    return tensors


def _faults(
    module: nn.Module, stored: Mapping[str, torch.Tensor], allowed: set[torch.dtype]
) -> Iterator[str]:
    """Say what differs; allowed: the card's dtype, and that in which libraries keep norms."""
    held: set[int] = set()
    resident = module.state_dict(keep_vars=True)
    for name, tensor in resident.items():
        if name in stored:
            held.add(tensor.data_ptr())
            yield from _difference(name, tensor.detach(), stored[name], allowed)
    for name, tensor in resident.items():
        # A tied tensor is stored under another of its names.
        if name not in stored and tensor.data_ptr() not in held:
            yield f"{name} is in no file"
    ignored: list[str] = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or []
    for name in sorted(set(stored) - set(resident)):
        if not any(re.search(pattern, name) for pattern in ignored):  # as transformers does
            yield f"{name} is in a file and was not loaded"


def _difference(
    name: str, tensor: torch.Tensor, stored: torch.Tensor, allowed: set[torch.dtype]
) -> Iterator[str]:
    if tensor.shape != stored.shape:
        yield f"{name} is {list(tensor.shape)}, its file has {list(stored.shape)}"
    elif tensor.dtype not in allowed:
        yield f"{name} is {tensor.dtype}, which the card does not say"
    elif not equal_bits(tensor, stored.to(tensor.dtype)):
        worst = float((tensor.double() - stored.double()).abs().max())
        yield f"{name} differs from its file by up to {worst:.3g}"
    elif not is_aligned(tensor):
        yield f"{name} does not begin at an aligned address"
