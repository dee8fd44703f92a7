"""Progress: a bar on terminals, few plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from ostinato.cli._progress import Bar, Lines, Reading, Silent, progress_display


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    display = Lines()
    for step in range(1, 1001):
        display.show(Reading(step=step, total=1000, unit="step", device_s=0.1 * step, chunks=2))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == "step 1000/1000, 100.0 device-s, 2 chunks, 0 s left"


def test_bar_shows_the_reading_and_keeps_notes() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with Progress(TextColumn("{task.description}"), console=console) as progress:
        bar = Bar(progress)
        bar.note("warning: [bold] is no word")
        bar.show(Reading(step=3, total=9, unit="step", device_s=1.5))
        progress.refresh()
    assert "warning: [bold] is no word" in screen.getvalue()
    assert "step 3/9, 1.5 device-s" in screen.getvalue()


def test_quiet_and_piped(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(quiet=True) as display:
        assert isinstance(display, Silent)
        display.note("nothing")
        display.show(Reading(step=1, total=1, unit="step"))
    assert capsys.readouterr().err == ""
    with progress_display(quiet=False) as display:
        assert isinstance(display, Lines)
