"""What a command hands back to be printed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The end of a command.

    text: for people, on stdout. document: for programs, with --json; anything the wire encodes.
    """

    text: str
    document: object
    exit_code: int = 0
