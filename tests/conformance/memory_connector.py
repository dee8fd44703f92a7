"""The least connector that passes the suite: bytes in this process, for tests of the suite alone.

It guarantees what the protocol says and no more; no engine uses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from conformance.transfers import Manifest, TensorEntry, TransferKey, tensor_bytes
from ostinato.errors import OstinatoError


class TransferRefused(OstinatoError):
    """A transfer that is unknown, was published before, or is not what its manifest says."""

    code = "transfer_refused"


class MemoryConnector:
    """Keeps what is published as bytes until it is released."""

    def __init__(self) -> None:
        self.held: dict[TransferKey, tuple[Manifest, dict[str, bytearray]]] = {}
        self.closed = False

    @property
    def num_bytes(self) -> int:
        return sum(len(data) for _, blobs in self.held.values() for data in blobs.values())

    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        self._require_open()
        if manifest.key in self.held:
            raise TransferRefused(f"{manifest.key} was published before; a version is sent once")
        names = [entry.name for entry in manifest.entries]
        if sorted(names) != sorted(tensors):
            raise TransferRefused(f"{manifest.key} lists {sorted(names)}, not {sorted(tensors)}")
        for entry in manifest.entries:
            self.require_described(entry, tensors[entry.name])
        blobs = {name: bytearray(tensor_bytes(tensors[name])) for name in names}
        self.held[manifest.key] = manifest, blobs

    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        manifest, blobs = self._found(key)
        tensors: dict[str, torch.Tensor] = {}
        for entry in manifest.entries:
            data = bytearray(blobs[entry.name])
            self.require_whole(key, entry, data)
            tensors[entry.name] = _tensor(entry, data)
        return tensors

    def release(self, key: TransferKey) -> None:
        self._found(key)
        del self.held[key]

    def close(self) -> None:
        self.closed = True
        self.held.clear()

    def require_described(self, entry: TensorEntry, tensor: torch.Tensor) -> None:
        found = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        if found != (entry.shape, entry.dtype):
            raise TransferRefused(f"{entry.name!r} is {found}; its manifest says {entry}")

    def require_whole(self, key: TransferKey, entry: TensorEntry, data: bytes | bytearray) -> None:
        if hashlib.sha256(data).hexdigest() != entry.digest:
            raise TransferRefused(
                f"{entry.name!r} of {key} is not what was sent: its digest is off"
            )

    def _found(self, key: TransferKey) -> tuple[Manifest, dict[str, bytearray]]:
        self._require_open()
        if key not in self.held:
            raise TransferRefused(f"{key} was never published, or was released")
        return self.held[key]

    def _require_open(self) -> None:
        if self.closed:
            raise TransferRefused("this connector is closed; make a new one")


def _tensor(entry: TensorEntry, data: bytearray) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).reshape(entry.shape)
