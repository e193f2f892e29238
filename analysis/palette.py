"""Colours of pages and pictures, and line styles that distinguish arms (Okabe and Ito's colours, one hue from pale to dark for maps)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PAPER = {
    "ground": "#ffffff", "panel": "#ffffff", "ink": "#000000", "soft": "#444444", "rule": "#cccccc",
    "a": "#0072b2", "b": "#c24e00", "c": "#00805d", "d": "#a8407f", "e": "#8a6d00", "f": "#3f8ec4", "g": "#555555",
    "before": "#9aa7b4", "user": "#f2f6fa", "agent": "#ffffff",
}  # fmt: skip
"""For print and for picture files. `a` to `g` distinguish lines and are readable on white."""
LIGHT = {**PAPER, "panel": "#f6f7f9", "ink": "#1b1f24", "soft": "#5c6570", "rule": "#dfe3e8", "user": "#eef4f9"}
DARK = {
    "ground": "#14171b", "panel": "#1c2026", "ink": "#e6e9ed", "soft": "#9da7b3", "rule": "#323942",
    "a": "#56b4e9", "b": "#f0883e", "c": "#2fbf91", "d": "#e08cc0", "e": "#d9b93b", "f": "#9fd0f0", "g": "#b5b5b5",
    "before": "#7b8794", "user": "#1b2733", "agent": "#20252c",
}  # fmt: skip
BLUES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""Of a map, from low to high; monotone in lightness."""
DASHES: dict[str, Any] = {
    "a": "-",
    "b": (0, (5, 2)),
    "c": (0, (1.4, 1.8)),
    "d": (0, (6, 2, 1.4, 2)),
    "e": (0, (9, 2.5)),
    "f": (0, (3, 1.4)),
    "g": (0, (1, 3)),
}
"""A dash for each colour, so that no line is known by colour alone."""
MARKERS = ("", "o", "s", "^", "D", "v")


def css(colours: Mapping[str, str]) -> str:
    """Colours as CSS variables."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def arm_styles(arms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's line properties by arm: seven colours with their dashes, then the same with a marker; 42 differ."""
    colours, styles = list(DASHES), {}
    for i, arm in enumerate(arms):
        colour = colours[i % len(colours)]
        styles[arm] = {"color": PAPER[colour], "linestyle": DASHES[colour]}
        if marker := MARKERS[i // len(colours) % len(MARKERS)]:
            styles[arm] |= {"marker": marker, "markersize": 4.6, "markevery": 0.12}
    return styles
