"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINES = 10  # of plain progress for a whole request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How far the work is; chunks and device_s are None where they mean nothing."""

    step: int
    total: int
    unit: str
    device_s: float | None = None
    chunks: int | None = None

    def describe(self) -> str:
        """Say it on one line."""
        words = [f"{self.unit} {self.step}/{self.total}"]
        if self.device_s is not None:
            words.append(f"{self.device_s:.1f} device-s")
        if self.chunks:
            words.append(f"{self.chunks} chunks")
        return ", ".join(words)


class Display(Protocol):
    """Where progress is shown."""

    def show(self, reading: Reading) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    """Shows nothing; notes too are left out."""

    def show(self, reading: Reading) -> None:
        """Ignore the reading."""

    def note(self, text: str) -> None:
        """Ignore the note."""


class Lines:
    """One plain line each tenth of the work."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = 0

    def show(self, reading: Reading) -> None:
        """Print the reading when another tenth is done."""
        tenth = _LINES * reading.step // max(reading.total, 1)
        if tenth <= self._shown:
            return
        self._shown = tenth
        elapsed = time.monotonic() - self._started
        left = elapsed / reading.step * (reading.total - reading.step)
        print(f"{reading.describe()}, {left:.0f} s left", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Print the note on a line of its own."""
        print(text, file=sys.stderr, flush=True)


class Bar:
    """A bar that stays on the last line of the terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("", total=None)

    def show(self, reading: Reading) -> None:
        """Move the bar."""
        self._progress.update(
            self._task,
            completed=reading.step,
            total=reading.total,
            description=reading.describe(),
        )

    def note(self, text: str) -> None:
        """Print the note above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)


@contextmanager
def progress_display(*, quiet: bool) -> Iterator[Display]:
    """Choose how progress is shown and clean up after it."""
    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield Lines()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield Bar(progress)


@contextmanager
def plain_warnings(*, quiet: bool) -> Iterator[None]:
    """Show Python's warnings as a line each, without the code that raised them."""

    def show(message: Warning | str, *_: object) -> None:
        if not quiet:
            print(f"warning: {message}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def hide_library_bars() -> None:
    """Stop the libraries' own bars from here on; those of a hub download came before."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    diffusers_logging.disable_progress_bar()
