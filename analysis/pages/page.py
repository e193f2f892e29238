"""The frame of every report: one HTML file that loads nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path

from analysis.drawing.style import STYLE
from simulator.drafts import write_whole


def write_page(path: Path, *, title: str, body: str) -> Path:
    """Writes a page whole or not at all; returns its path."""
    return write_whole(path, document(title, body))


def document(title: str, body: str) -> str:
    """The page with its style sheet."""
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    start = f'<!doctype html>\n<html lang="en"><head>{meta}<title>{escape(title)}</title><style>{STYLE}</style></head>'
    return f"{start}\n<body><main>\n{body}\n</main></body></html>\n"
