"""What a request tells its caller while it runs: dense sequence numbers, the last is final."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ostinato.errors import OstinatoError
from ostinato.tasks import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The first step of the request is about to run."""

    request_id: RequestId
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something the caller should know, such as words of the prompt that the model ignores."""

    request_id: RequestId
    sequence: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of a node is done.

    step, total: counted over the whole request; device_s: device-seconds spent so far.
    """

    request_id: RequestId
    sequence: int
    node: str
    step: int
    total: int
    device_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReady:
    """A finished piece of an output, in order; value is what the output's node wrote.

    For video: uint8 array [T, H, W, 3].
    """

    request_id: RequestId
    sequence: int
    output: str
    index: int
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The request is done; its result can be taken."""

    request_id: RequestId
    sequence: int
    device_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request failed alone; error is what `result()` raises."""

    request_id: RequestId
    sequence: int
    error: OstinatoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The request stopped at a step boundary because it was cancelled."""

    request_id: RequestId
    sequence: int


Event: TypeAlias = Started | Advice | Progress | ChunkReady | Finished | Failed | Cancelled
FinalEvent: TypeAlias = Finished | Failed | Cancelled
