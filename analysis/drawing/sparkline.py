"""The course of an emotion, small enough to stand in a line of text."""

from __future__ import annotations

from collections.abc import Sequence


def sparkline(values: Sequence[float]) -> str:
    """The user's emotion over a dialogue, 0-100, as inline SVG; empty with fewer than two values."""
    if len(values) < 2:
        return ""
    points = " ".join(f"{2 + 92 * i / (len(values) - 1):.1f},{26 - 24 * value / 100:.1f}" for i, value in enumerate(values))
    x, y = points.rpartition(" ")[2].split(",")
    label = f"emotion from {values[0]:g} to {values[-1]:g}"
    drawn = f'<polyline class="line a" points="{points}"/><circle class="dot a" cx="{x}" cy="{y}" r="2.5"/>'
    return f'<svg class="spark" viewBox="0 0 96 28" role="img" aria-label="{label}">{drawn}</svg>'
