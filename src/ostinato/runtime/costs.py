"""What was measured on a device, kept from one process to the next.

One JSON file a device: another processor, torch or thread count has another file, since its times
say nothing here. The file is a cache. One that cannot be read, is of another version or of another
device is left alone until it is written over, and everything is measured again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ostinato.env import Environment
from ostinato.errors import BadInput
from ostinato.report import describe_device
from ostinato.wire import decode, digest, encode
from ostinato.work import CostModel, Measured

VERSION = 1
MAX_ENTRIES = 4096  # shapes in a file; the newest of them
_MAX_BYTES = 64 * 2**20  # a larger file is none of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFile:
    """What a file holds; device: what the times depend on."""

    version: int
    device: Mapping[str, str]
    measured: tuple[Measured, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCosts:
    """What a file gave. note: one sentence when there is a file that could not be used."""

    measured: tuple[Measured, ...] = ()
    note: str | None = None

    def to_model(self) -> CostModel:
        """Return a cost model that knows it."""
        return CostModel(measured=self.measured)


class CostStore:
    """Reads and writes the file of one device."""

    def __init__(self, folder: Path, device: Mapping[str, str]) -> None:
        """Keep the file in `folder`, which need not exist; its name is the device's digest."""
        self._device = dict(device)
        name = digest(_Device(device=self._device)).removeprefix("sha256:")[:16]
        self.path = folder / f"{name}.json"

    @staticmethod
    def of_this_process(threads: int) -> CostStore:
        """Return the store of this machine's CPU, under OSTINATO_CACHE_DIR; raises BadInput."""
        return CostStore(Environment.read().cache_dir / "costs", describe_device(threads))

    def load(self) -> LoadedCosts:
        """Return what the file holds; nothing without a file."""
        try:
            if self.path.stat().st_size > _MAX_BYTES:
                return self._unusable("it is too large")
            found = decode(self.path.read_bytes(), CostFile, what="the file of measured costs")
        except FileNotFoundError:
            return LoadedCosts()
        except (OSError, BadInput) as error:
            return self._unusable(str(error))
        if found.version != VERSION:
            return self._unusable(f"it has version {found.version}, expected {VERSION}")
        if found.device != self._device:
            return self._unusable("it is of another device")
        return LoadedCosts(measured=found.measured)

    def save(self, model: CostModel) -> None:
        """Write the file as a whole or not at all; raises OSError.

        The last of several processes wins: what it knows is as good as what the others know.
        """
        document = CostFile(
            version=VERSION, device=self._device, measured=_newest(model.measured())
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.stem}-")
        written = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode(document))
            written.replace(self.path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise

    def _unusable(self, why: str) -> LoadedCosts:
        return LoadedCosts(
            note=f"measured costs in {str(self.path)!r} are not used, and measured anew: {why}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """What a file is named by."""

    device: Mapping[str, str]


def _newest(measured: Iterable[Measured]) -> tuple[Measured, ...]:
    entries = tuple(measured)
    return tuple(islice(entries, max(0, len(entries) - MAX_ENTRIES), None))
