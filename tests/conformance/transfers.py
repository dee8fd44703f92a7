"""What a connector is: keys, manifests, the protocol; and what the suite sends through it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch


class TransferKey(NamedTuple):
    """What is sent: a name, at a version."""

    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a manifest; dtype by torch name, digest of its bytes in row-major order."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What belongs to a key, said before the bytes are."""

    key: TransferKey
    entries: tuple[TensorEntry, ...]


class Connector(Protocol):
    """Moves tensors; every refusal is a typed error, and what was refused is not kept."""

    @property
    def num_bytes(self) -> int:
        """Bytes held for keys that are not released."""
        ...

    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make a key's tensors available, once; refuses what the manifest does not describe."""
        ...

    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        """Return a key's tensors, verified by digest; as often as asked, until it is released."""
        ...

    def release(self, key: TransferKey) -> None:
        """Free what is held for a key, once."""
        ...

    def close(self) -> None:
        """Free everything; safe to call twice."""
        ...


DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes in row-major order, whatever its dtype."""
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())


def describe(key: TransferKey, tensors: Mapping[str, torch.Tensor]) -> Manifest:
    """Make the manifest of what is to be sent."""
    return Manifest(
        key=key,
        entries=tuple(
            TensorEntry(
                name=name,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                digest=hashlib.sha256(tensor_bytes(tensor)).hexdigest(),
            )
            for name, tensor in tensors.items()
        ),
    )


def payload(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Return seeded tensors of many forms: a scalar, empty ones, a view with strides."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 8).to(dtype)

    return {
        "scalar": drawn(),
        "empty": drawn(0),
        "empty rows": drawn(2, 0, 3),
        "matrix": drawn(5, 7),
        "transposed": drawn(4, 6).t(),
        "every other": drawn(9, 2)[::2],
    }


def equal(found: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether names, shapes, dtypes and bytes are those sent."""
    return set(found) == set(sent) and all(
        found[name].shape == tensor.shape
        and found[name].dtype == tensor.dtype
        and tensor_bytes(found[name]) == tensor_bytes(tensor)
        for name, tensor in sent.items()
    )


def faulty(
    manifest: Manifest, tensors: Mapping[str, torch.Tensor], fault: str
) -> tuple[Manifest, Mapping[str, torch.Tensor]]:
    """Make a manifest and its tensors disagree."""
    matrix = tensors["matrix"]
    changed: Mapping[str, Mapping[str, torch.Tensor]] = {
        "missing": {name: tensor for name, tensor in tensors.items() if name != "matrix"},
        "surplus": {**tensors, "surplus": matrix},
        "shape": {**tensors, "matrix": matrix.reshape(7, 5)},
        "dtype": {**tensors, "matrix": matrix.view(torch.int32)},
        "digest": {**tensors, "matrix": matrix + 1},
    }
    if fault in changed:
        return manifest, changed[fault]
    return dataclasses.replace(manifest, entries=manifest.entries * 2), tensors
