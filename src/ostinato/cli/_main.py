"""The entry point: exit 0 done, 2 bad usage or input, 1 failure, 130 interrupted."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import TextIO

from ostinato.cli._arguments import (
    Bench,
    Command,
    Doctor,
    Eval,
    Generate,
    Inspect,
    Models,
    Simulate,
    Train,
    Verify,
)
from ostinato.cli._parse import parse
from ostinato.cli._result import CommandResult
from ostinato.errors import OstinatoError, RequestCancelled
from ostinato.wire import encode

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json, debug = "--json" in flags, "--debug" in flags
    if arguments == ["--version"]:
        print(f"ostinato {version('ostinato')}")
        return 0
    try:
        command = _parse_or_help(arguments)
        if command is None:
            return 0
        result = _run(command)
        _print_result(result, as_json=as_json)
    except BrokenPipeError:  # whoever read our output left
        _abandon(sys.stdout)
        return 1
    except KeyboardInterrupt:
        return _fail(RequestCancelled.code, "interrupted", INTERRUPTED, as_json=as_json)
    except OstinatoError as error:
        if debug:
            traceback.print_exc()
        return _fail(error.code, str(error), error.exit_code, as_json=as_json)
    except (Exception, SystemExit) as error:  # what a command calls must not end us as if done
        if debug:
            traceback.print_exc()
        hint = "" if debug else "; run again with --debug for the traceback"
        message = f"{type(error).__name__}: {error}{hint}"
        return _fail(OstinatoError.code, message, OstinatoError.exit_code, as_json=as_json)
    return result.exit_code


def _parse_or_help(arguments: Sequence[str]) -> Command | None:
    """Parse; None when help was asked for and printed."""
    try:
        return parse(arguments)
    except SystemExit:
        return None


def _run(command: Command) -> CommandResult:
    """Import a command when it is asked for: most bring torch, help does not need it."""
    match command:
        case Generate():
            from ostinato.cli._destinations import check_timeline, destinations

            files = destinations(command.output, command.prompt, command.outputs, command.fps)
            check_timeline(command.timeline)
            from ostinato.cli._generate import generate

            return generate(command, files)
        case Models():
            from ostinato.cli._models import list_models

            return list_models()
        case Inspect():
            from ostinato.cli._inspect import inspect_model

            return inspect_model(command)
        case Train():
            from ostinato.cli._train import train

            return train(command)
        case Eval():
            from ostinato.cli._eval import evaluate

            return evaluate(command)
        case Verify():
            from ostinato.cli._verify import verify_model

            return verify_model(command)
        case Bench():
            from ostinato.cli._bench import bench

            return bench(command)
        case Simulate():
            from ostinato.cli._simulate import run_simulation

            return run_simulation(command)
        case Doctor():
            from ostinato.cli._doctor import diagnose

            return diagnose(command)


def _print_result(result: CommandResult, *, as_json: bool) -> None:
    if _is_closed(sys.stdout):
        raise OSError("stdout is closed, so the result cannot be shown")
    if result.text:
        print(result.text)
    if as_json:
        print(encode(result.document).decode())
    sys.stdout.flush()


def _fail(code: str, message: str, exit_code: int, *, as_json: bool) -> int:
    _say(f"error [{code}]: {message}", sys.stderr)
    if as_json:
        _say(encode({"error": {"code": code, "message": message}}).decode(), sys.stdout)
    return exit_code


def _say(text: str, stream: TextIO) -> None:
    """Print where that is possible: a report of a failure must not itself be one."""
    if _is_closed(stream):
        return
    try:
        print(text, file=stream, flush=True)
    except OSError:
        _abandon(stream)


def _is_closed(stream: TextIO | None) -> bool:
    """Python starts with None for a stream whose descriptor is closed."""
    return stream is None


def _abandon(stream: TextIO) -> None:
    """Send what is still buffered nowhere: Python would complain when it flushes at exit."""
    if not _is_closed(stream):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
