"""Files: what lies in the folder is what the card was made from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ostinato.backend.checkpoint import read_headers
from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.subject import Subject

NAME = "files"
_BLOCK_BYTES = 1 << 20


def files(subject: Subject) -> GateResult:
    """Hold every file of the card against its digest; headers where the card lists no digest.

    Raises NothingMeasured for a folder without a weight file, InvalidCheckpoint for a header that
    cannot be read.
    """
    listed, folder = subject.card.files, subject.source.folder
    if not listed:
        return _headers(subject)
    wrong = [
        f"{file.path} is missing" if found is None else f"{file.path} has sha256 {found}"
        for file in listed
        if (found := sha256_of(folder / file.path)) != file.sha256
    ]
    return GateResult(
        name=NAME,
        rung=Rung.FILES,
        passed=not wrong,
        measured=len(listed),
        message=(
            f"{len(listed)} files have the sha256 that the card lists"
            if not wrong
            else f"changed since the card was made: {'; '.join(wrong)}"
        ),
        detail={"digests": True},
    )


def sha256_of(path: Path) -> str | None:
    """Return the sha256 of a file in hex, None where there is none."""
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _headers(subject: Subject) -> GateResult:
    count = 0
    for name in subject.weighted:
        count += len(read_headers(subject.source.folder / subject.card.component(name).subfolder))
    if count == 0:
        raise NothingMeasured(f"no weight file in {subject.source.folder}")
    return GateResult(
        name=NAME,
        rung=Rung.FILES,
        passed=True,
        measured=count,
        message=f"the card lists no digest; the headers of {count} tensors are whole",
        detail={"digests": False},
    )
