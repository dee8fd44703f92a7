"""The record of decisions: each tick's snapshot with what was decided, kept, written, replayed.

A decision is a pure function of its snapshot and the policy, so a recorded tick can be decided
again, by the same policy to prove that nothing else had a say, or by another to see what it would
have done.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from ostinato.errors import BadInput
from ostinato.media import replacing
from ostinato.runtime.scheduler import Decision, Policy, Snapshot, decide
from ostinato.runtime.witness.several import Bystander
from ostinato.wire import encode

NUM_TICKS = 10_000
FILE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One tick: what the scheduler saw and what it said."""

    snapshot: Snapshot
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A tick that is decided otherwise than it was."""

    tick: int
    recorded: Decision
    replayed: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """num_ticks: how many were decided again. num_different: how many came out otherwise."""

    num_ticks: int
    num_different: int
    first: Difference | None


class DecisionLog(Bystander):
    """Keeps the latest ticks, and writes all of them to a file when one is given.

    The file has one JSON object a line and is written line by line, so that a process that dies
    leaves what it decided. A file that is there, or grows beyond `file_bytes`, is renamed to
    `PATH.1`, in place of an earlier one. `records` and `save` may be used from any thread.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        num_ticks: int = NUM_TICKS,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Begin a record; raises OSError where the file cannot be opened."""
        self._lock = threading.Lock()
        self._kept: deque[DecisionRecord] = deque(maxlen=num_ticks)
        self._path = None if path is None else Path(path)
        self._file_bytes = file_bytes
        self._file = None if self._path is None else _begin(self._path)

    @property
    def records(self) -> tuple[DecisionRecord, ...]:
        """The latest ticks, the oldest first."""
        with self._lock:
            return tuple(self._kept)

    def decided(self, snapshot: Snapshot, decision: Decision) -> None:
        """Keep a tick."""
        record = DecisionRecord(snapshot=snapshot, decision=decision)
        with self._lock:
            self._kept.append(record)
            if self._file is not None:
                self._write(_line(record))

    def save(self, path: str | Path) -> None:
        """Write the latest ticks to a file, in one step; raises OutputNotWritten."""
        with replacing(Path(path)) as partial:
            partial.write_bytes(b"".join(map(_line, self.records)))

    def close(self) -> None:
        """Close the file; ticks that come later are kept in memory alone."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        assert self._path is not None
        size = self._file.tell()
        if size and size + len(line) > self._file_bytes:
            self._file.close()
            self._file = _begin(self._path)
        self._file.write(line)
        self._file.flush()


def read_decisions(path: str | Path) -> Iterator[DecisionRecord]:
    """Read what a `DecisionLog` wrote; a last line that was cut short is left out.

    Raises BadInput that names the line which is no record.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield _record(line, f"line {number} of {str(path)!r}")


def replay(records: Iterable[DecisionRecord], policy: Policy) -> Replay:
    """Decide every recorded snapshot again, and compare."""
    num_ticks = num_different = 0
    first: Difference | None = None
    for record in records:
        num_ticks += 1
        replayed = decide(record.snapshot, policy)
        if replayed != record.decision:
            num_different += 1
            first = first or Difference(
                tick=record.snapshot.tick, recorded=record.decision, replayed=replayed
            )
    return Replay(num_ticks=num_ticks, num_different=num_different, first=first)


def _begin(path: Path) -> BinaryIO:
    if path.exists():
        os.replace(path, path.with_name(path.name + ".1"))
    return path.open("xb")


def _line(record: DecisionRecord) -> bytes:
    """Encode a record; JSON has no infinity, so room that is not managed is written as null."""
    return encode(record) + b"\n"


def _record(line: bytes, what: str) -> DecisionRecord:
    try:
        raw = cast("dict[str, dict[str, object]]", msgspec.json.decode(line))
        room = cast("dict[str, float | None]", raw["snapshot"]["room"])
        limits = {name: float("inf") if limit is None else limit for name, limit in room.items()}
        filled = {**raw, "snapshot": {**raw["snapshot"], "room": limits}}
        record = msgspec.convert(filled, DecisionRecord)
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{what} is no record of a decision: {error}") from error
    if msgspec.json.decode(encode(record)) != raw:
        raise BadInput(
            f"{what} was not written by this version of the scheduler: it has other fields"
        )
    return record
