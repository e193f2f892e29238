"""Pages as single HTML files that load nothing: Jinja2 templates that escape what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.plots import PAPER

TEMPLATES = Path(__file__).with_name("templates")
COLOURS = {
    "light": {**PAPER, "panel": "#f6f7f9", "ink": "#1b1f24", "soft": "#5c6570", "rule": "#dfe3e8", "user": "#eef4f9"},
    "dark": {
    "ground": "#14171b", "panel": "#1c2026", "ink": "#e6e9ed", "soft": "#9da7b3", "rule": "#323942",
    "a": "#56b4e9", "b": "#f0883e", "c": "#2fbf91", "d": "#e08cc0", "e": "#d9b93b", "f": "#9fd0f0", "g": "#b5b5b5",
    "before": "#7b8794", "user": "#1b2733", "agent": "#20252c",
    },
    "paper": PAPER,
}  # fmt: skip


def render(template: str, **content: Any) -> str:
    """A page from its template; words in its content are never markup."""

    def source(name: str) -> Markup:
        """A style sheet or script of ours, unescaped."""
        return Markup((TEMPLATES / name).read_text(encoding="utf-8"))

    def curve(values: Sequence[float]) -> list[tuple[str, str]]:
        """Points of a sparkline of emotions 0-100, in a box of 96 x 28."""
        return [(f"{2 + 92 * i / max(len(values) - 1, 1):.1f}", f"{26 - 24 * value / 100:.1f}") for i, value in enumerate(values)]

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name, colours in COLOURS.items():
        environment.globals[name] = Markup(" ".join(f"--{variable}: {colour};" for variable, colour in colours.items()))
    return environment.get_template(template).render(content, source=source, curve=curve)
