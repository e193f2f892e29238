"""Pages as single HTML files that load nothing: Jinja2 templates that escape what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.palette import DARK, LIGHT, PAPER, css

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **content: Any) -> str:
    """A page from its template; words in its content are never markup."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    colours = {"light": LIGHT, "dark": DARK, "paper": PAPER}
    environment.globals |= {**{name: Markup(css(found)) for name, found in colours.items()}, "source": source, "curve": curve}
    return environment.get_template(template).render(content)


def source(name: str) -> Markup:
    """A style sheet or script of ours, as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def curve(values: Sequence[float]) -> list[tuple[str, str]]:
    """Points of a sparkline of emotions 0-100, in a box of 96 x 28."""
    return [(f"{2 + 92 * i / max(len(values) - 1, 1):.1f}", f"{26 - 24 * value / 100:.1f}") for i, value in enumerate(values)]
