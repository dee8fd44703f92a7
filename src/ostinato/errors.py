"""Typed errors: every failure that a person can meet has one class with a stable code.

A message says what was wrong (the value), what was expected and what to do. `code` never changes
once released; `http_status` is what a server answers; `exit_code` is what the command line returns.
"""

from __future__ import annotations

from typing import ClassVar


class OstinatoError(Exception):
    """Root of all errors raised on purpose."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class BadInput(OstinatoError, ValueError):
    """The caller asked for something that is not valid; nothing was started."""

    code = "bad_input"
    http_status = 400
    exit_code = 2


class InvalidRequest(BadInput):
    """One or more fields of a request are out of range; the message lists all of them."""

    code = "invalid_request"


class UnknownField(BadInput):
    """A name that no contract declares; the message lists the valid ones."""

    code = "unknown_field"


class UnsupportedTask(BadInput):
    """The card's capabilities do not list the task that the request declares."""

    code = "unsupported_task"


class RecipeMismatch(BadInput):
    """The request contradicts what the recipe that made the weights assumes."""

    code = "recipe_mismatch"


class UnknownModel(BadInput):
    """No family, folder or hub repository answers to this name."""

    code = "unknown_model"
    http_status = 404


class InvalidCard(BadInput):
    """A card is inconsistent; the message lists all errors at once."""

    code = "invalid_card"


class InvalidCheckpoint(BadInput):
    """A checkpoint folder is incomplete, truncated or does not match its configuration."""

    code = "invalid_checkpoint"


class UnsafeCheckpoint(InvalidCheckpoint):
    """A checkpoint would have to be unpickled, which can run code; only safetensors is read."""

    code = "unsafe_checkpoint"


class InvalidOutput(BadInput):
    """An output path or container that cannot be written."""

    code = "invalid_output"


class OutputNotWritten(OstinatoError, OSError):
    """An artifact could not be written to the end: a full disk, a quota, a lost mount."""

    code = "output_not_written"


class InvalidProgram(BadInput):
    """A program's graph does not hold together: unknown slots, two writers, a cycle."""

    code = "invalid_program"


class UndeclaredAccess(OstinatoError):
    """A node read or wrote a slot that it did not declare."""

    code = "undeclared_access"


class InvalidPlan(OstinatoError):
    """A work plan names an unknown component, op, page or call."""

    code = "invalid_plan"


class PageViolation(OstinatoError):
    """A cache page was written twice, read at another version or used after it was freed."""

    code = "page_violation"


class NonFinite(OstinatoError):
    """A step produced NaN or infinity; the message names the request, step and tensor."""

    code = "non_finite"


class RequestCancelled(OstinatoError):
    """The request was cancelled; it stopped at a step boundary and freed what it held."""

    code = "cancelled"
    http_status = 409


class DeadlineExceeded(OstinatoError):
    """The request passed its deadline and was stopped at a step boundary."""

    code = "deadline_exceeded"
    http_status = 504


class AdmissionInfeasible(OstinatoError):
    """The request needs more than the engine has at all; the message says what and how much."""

    code = "admission_infeasible"
    http_status = 422


class EngineLost(OstinatoError):
    """The engine process ended while it served the request; it is restarted for the next one."""

    code = "engine_lost"
    http_status = 503


class RankLost(OstinatoError):
    """A rank of a pool stopped, went silent or diverged; the others cannot go on without it."""

    code = "rank_lost"
    http_status = 503


class InvalidMessage(OstinatoError):
    """Another process sent what the protocol between processes does not allow."""

    code = "invalid_message"
    http_status = 502


class InternalError(OstinatoError):
    """A fault that is not the caller's; the cause is chained."""

    code = "internal"


class EngineClosed(OstinatoError):
    """The engine is closed and takes no more requests."""

    code = "engine_closed"
    http_status = 503


class OutputMissing(OstinatoError, LookupError):
    """An output was read that the request did not ask for."""

    code = "output_missing"
