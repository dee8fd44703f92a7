"""Files: what lies in the folder is what the card was made from."""

from __future__ import annotations

from pathlib import Path

from ostinato.backend.checkpoint import read_headers
from ostinato.parity.folders import weight_folders
from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.sources import GOLDENS, sha256_of
from ostinato.parity.subject import Subject

NAME = "files"


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
        if (found := _sha256(folder / file.path)) != file.sha256
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
        detail={"content_verified": True},
    )


def _sha256(path: Path) -> str | None:
    return sha256_of(path) if path.is_file() else None


def _headers(subject: Subject) -> GateResult:
    """Say what headers say, and that nothing here has looked at the content."""
    count, folder = 0, subject.source.folder
    for each in weight_folders(subject.source):
        count += len(read_headers(each.path, each.stem))
    if count == 0:
        raise NothingMeasured(f"no weight file in {folder}")
    elsewhere = (
        f"content is NOT verified; to keep a digest of every file: ostinato verify {folder} "
        f"--write-goldens {folder / GOLDENS}"
        if subject.options.goldens is None
        else "content is verified by the goldens"
    )
    return GateResult(
        name=NAME,
        rung=Rung.FILES,
        passed=True,
        measured=count,
        message=f"the headers of {count} tensors are whole; the card lists no digest: {elsewhere}",
        detail={"content_verified": False},
    )
