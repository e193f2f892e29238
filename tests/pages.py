"""A page taken apart: its words, headings, tables, scripts and drawings."""

from __future__ import annotations

import base64
import gzip
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis.plots import Figure

VOID = {"meta", "br", "input"}


class Page(HTMLParser):
    """Reads a page; fails where tags are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.words = ""
        """All that a reader sees."""
        self.headings: list[str] = []
        self.tables: list[list[list[str]]] = []
        """Rows of cells."""
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.loads: list[str | None] = []
        self.links: list[str | None] = []
        self._open: list[str] = []
        self.feed(self.text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append(tag)
        self.links += [value for name, value in attrs if name == "href" and tag == "a"]
        self.loads += [value for name, value in attrs if name == "src" or (name == "href" and tag not in ("a", "use"))]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "style" not in self._open:
            self.words += data
            if {"h1", "h2", "h3"} & {*self._open}:
                self.headings[-1] += data
            if {"td", "th"} & {*self._open}:
                self.tables[-1][-1][-1] += data

    def table(self, corner: str) -> dict[str, list[str]]:
        """The rows of the table whose first cell this is, by their first cell."""
        return next({row[0]: row[1:] for row in rows[1:]} for rows in self.tables if rows[0][0] == corner)

    def facts(self) -> dict[str, str]:
        """Name and value of the numbers at the top."""
        return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", self.text))

    def drawing(self, label: str) -> ElementTree.Element:
        """The drawing with this label."""
        drawings = map(ElementTree.fromstring, re.findall(r"<svg.*?</svg>", self.text, flags=re.DOTALL))
        return next(drawing for drawing in drawings if drawing.get("aria-label") == label)

    def marks(self, label: str, kind: str) -> list[str | None]:
        """What is shown at the marks of one kind in a drawing, a line or a dot each."""
        return [group.findtext("title") for group in self.drawing(label).iter("g") if group.get("class") == kind]


def dialogues_on(path: Path) -> list[dict[str, Any]]:
    """The dialogues on a page, unpacked as its script does."""
    packed = next(text for attrs, text in Page(path).scripts if attrs.get("id") == "data")
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.fixture
def pictures() -> None:
    """Requested by tests that look at the pictures of a page they write."""


@pytest.fixture(autouse=True)
def words_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws nothing where no test looks: pictures take nearly all of a page's time."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(Figure, "render", lambda self, *formats: [b'<svg viewBox="0 0 1 1"></svg>' for _ in formats])
