"""Documents do not rot: what they link to exists, and changes are recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = tuple(
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")])
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Paths in backticks, from the root of the repository; braces and stars stand for several files.
_PATH = re.compile(r"`((?:src|tests|docs|benchmarks|examples|\.ci)/[\w./-]+)`")


def _broken(document: Path) -> list[str]:
    text = document.read_text()
    links = [link.partition("#")[0] for link in _LINK.findall(text) if "://" not in link]
    missing = [link for link in links if link and not (document.parent / link).exists()]
    return missing + [path for path in _PATH.findall(text) if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_document_points_to_exists(document: Path) -> None:
    assert _broken(document) == []


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs/architecture.md"]
)
def test_the_usual_documents_are_there(name: str) -> None:
    assert (ROOT / name).read_text().strip()


def test_changelog_has_a_place_for_what_comes_next() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("[here](page.md) [web](https://x.org) [gone](gone.md#part) `src/no.py`")
    assert _broken(document) == ["gone.md", "src/no.py"]
