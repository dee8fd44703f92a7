"""The page says everything, escapes everything and loads nothing."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ostinato.errors import BadInput
from ostinato.parity.gate import GateResult, Rung
from ostinato.parity.gates.components import components
from ostinato.parity.ladder import Verification, report_of
from ostinato.parity.page import render_page, write_page
from ostinato.parity.subject import Subject

HOSTILE = GateResult(
    name="<script>alert(1)</script>",
    rung=Rung.FILES,
    passed=False,
    measured=1,
    message='a "quoted" <b>message</b> & more',
    detail={"<i>": "<u>"},
)


class Balanced(HTMLParser):
    """Holds every tag against its end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(builtin: Subject) -> str:
    measured = components(builtin)
    found = Verification(
        model_id="a <model>",
        card_digest="sha256:0",
        gates=(HOSTILE, measured),
        threads=1,
    )
    return render_page([found], report_of([found]))


def test_gates_taps_and_environment_are_there(page: str) -> None:
    for text in ("ostinato verify", "FAILED", "components", "worst_relative_error", "processor"):
        assert text in page
    for component in ("text_encoder", "transformer", "codec"):
        assert f"<h3>{component}: taps" in page
    taps = re.findall(r"<code>(?:encode|encode_text|predict|store|decode): [\w.]+</code>", page)
    assert len(taps) > 15


def test_it_is_escaped_and_self_contained(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a &lt;model&gt;" in page
    assert "&lt;b&gt;message&lt;/b&gt; &amp; more" in page
    parser = Balanced()
    parser.feed(page.partition(">")[2])
    assert parser.open == []
    assert {name for name, _ in parser.attributes} <= {"class", "lang", "charset"}
    assert not re.search(r"https?:|url\(|@import", page)


def test_a_tap_without_a_number_is_shown(builtin: Subject) -> None:
    measured = components(builtin)
    first = measured.comparisons[0]
    absent = dataclasses.replace(first, errors=None, tolerance=None, detail="it is <absent>")
    gate = dataclasses.replace(measured, comparisons=(absent, *measured.comparisons[1:]))
    found = Verification(model_id="m", card_digest="", gates=(gate,), threads=1)
    assert "it is &lt;absent&gt;" in render_page([found], report_of([found]))


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    found = Verification(model_id="m", card_digest="", gates=(HOSTILE,), threads=1)
    report = report_of([found])
    write_page([found], report, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(BadInput, match="cannot be written"):
        write_page([found], report, tmp_path / "no" / "page.html")
