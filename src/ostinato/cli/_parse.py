"""From an argument list to a command; bad usage is an error like any other."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import cast

import tyro

from ostinato.cli._arguments import SUBCOMMANDS, Command
from ostinato.errors import BadInput

DESCRIPTION = (
    "Serve and post-train composite generative models. "
    "`ostinato COMMAND --help` tells the flags; `ostinato --version` the version."
)


_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_SURROGATE = re.compile("[\ud800-\udfff]")  # how Python stores bytes that are not UTF-8
_BOX = " \u2502\u2500\u256d\u256e\u256f\u2570"  # spaces and the drawing characters of the frame


class BadUsage(BadInput):
    """The command line itself does not parse."""

    code = "bad_usage"


def parse(argv: Sequence[str]) -> Command:
    """Parse; raises BadUsage, and SystemExit(0) after help was printed."""
    for argument in argv:
        if _SURROGATE.search(argument):
            raise BadUsage(f"argument {argument!r} is not UTF-8 text; type it in UTF-8")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            command: object = tyro.cli(
                SUBCOMMANDS,
                prog="ostinato",
                description=DESCRIPTION,
                args=list(argv),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise BadUsage(_plain(complaint.getvalue())) from None
    return cast("Command", command)


def _plain(box: str) -> str:
    """Take the words out of the parser's drawn box: what it says, then its hints."""
    lines = [line.strip(_BOX) for line in _COLOR.sub("", box).splitlines()]
    title, *rest = [line for line in lines if line.strip("-")] or ["the command does not parse"]
    if rest and not rest[0].startswith(title):
        rest[0] = f"{title}: {rest[0]}"
    return "\n  ".join(rest or [title])
