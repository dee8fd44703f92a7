"""Read weights as float64 arrays, each tensor once, and account for every one of them.

Invariant: a network that was read has its declared shapes, and no tensor of its file was left out
but those that it names as not its own.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ostinato.backend.checkpoint import read_headers, weight_files
from ostinato.backend.reference.arrays import Affine, Array
from ostinato.errors import InvalidCheckpoint


class WeightReader:
    """The tensors of one component folder, handed out by name."""

    def __init__(self, folder: Path, stem: str) -> None:
        """Check and read `<stem>.safetensors` or its shards; raises InvalidCheckpoint."""
        self._folder = folder
        read_headers(folder, stem)
        self._left: dict[str, torch.Tensor] = {}
        try:
            for file in weight_files(folder, stem):
                self._left |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise InvalidCheckpoint(f"the weights in {folder} cannot be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        """Tell whether a tensor is there and was not taken yet."""
        return name in self._left

    def take(self, name: str, *shape: int) -> Array:
        """Hand out a tensor as float64; raises InvalidCheckpoint unless it has this shape."""
        if name not in self._left:
            raise InvalidCheckpoint(
                f"the weights in {self._folder} lack {name!r}, which their configuration needs"
            )
        tensor = self._left.pop(name)
        if tuple(tensor.shape) != shape:
            raise InvalidCheckpoint(
                f"{name!r} in {self._folder} is {list(tensor.shape)}; its configuration needs "
                f"{list(shape)}"
            )
        return tensor.to(torch.float64).numpy()

    def affine(self, name: str, *shape: int, bias: bool = True) -> Affine:
        """Hand out `<name>.weight` [O,...] and, unless there is none, `<name>.bias` [O]."""
        weight = self.take(f"{name}.weight", *shape)
        return Affine(weight, self.take(f"{name}.bias", shape[0]) if bias else None)

    def finish(self, *ignored: str) -> None:
        """Refuse tensors that nobody took; `ignored` are patterns of names that may be left."""
        left = [n for n in sorted(self._left) if not any(re.match(p, n) for p in ignored)]
        if left:
            raise InvalidCheckpoint(
                f"the weights in {self._folder} hold {len(left)} tensors that their configuration "
                f"does not declare, among them {left[:5]}"
            )
