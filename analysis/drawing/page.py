"""The frame of every report: one HTML file that loads nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path

from analysis.drawing.style import POLICY, STYLE
from simulator.files import write_whole


def write_page(path: Path, *, title: str, body: str) -> Path:
    """Writes a page whole or not at all; returns its path."""
    return write_whole(path, document(title, body))


def document(title: str, body: str, *, style: str = STYLE, has_script: bool = False, of_class: str = "") -> str:
    """The page with its style sheet.

    Args:
        has_script: the page has a script, so that its head forbids it to load anything.
        of_class: the body's class, where its style sheet asks for one.
    """
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    guard = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' if has_script else ""
    head = f"<head>{meta}{guard}<title>{escape(title)}</title><style>{style}</style></head>"
    start = f'<body class="{of_class}">' if of_class else "<body>"
    return f'<!doctype html>\n<html lang="en">{head}\n{start}<main>\n{body}\n</main></body></html>\n'
