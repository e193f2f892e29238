"""Draws a study's figure, held-out score over policy tokens by arm: `python studies/figure.py studies/<question>`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, LEFT, TOP, LEGEND = 640, 330, 46, 14, 170
COLOURS = ("#1b6ca8", "#d1495b", "#3c8d53", "#8a5fb5", "#c58b1e", "#4aa3a2", "#7a7a7a", "#a0522d")
POINTS = 25


def read_curves(path: Path) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """By arm, tokens and scores of each seed."""
    looks: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            looks.setdefault((row["arm"], row["seed"]), []).append((float(row["policy_tokens"]), float(row["score"])))
    arms: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (arm, _), points in looks.items():
        tokens, scores = np.array(points).T
        arms.setdefault(arm, []).append((tokens, scores))
    return arms


def draw(path: Path) -> str:
    """The figure as SVG: the mean over seeds, each held at its last score."""
    arms = read_curves(path)
    end = max(tokens[-1] for runs in arms.values() for tokens, _ in runs)
    grid = np.linspace(0.0, end, POINTS)
    means = {arm: np.mean([np.interp(grid, *run) for run in runs], axis=0) for arm, runs in arms.items()}
    low, high = min(map(np.min, means.values())), max(map(np.max, means.values()))
    bottom, top = 10.0 * np.floor(low / 10), 10.0 * np.ceil(high / 10)
    width, height = WIDTH - LEFT - LEGEND, HEIGHT - TOP - 40

    def x(tokens: float) -> float:
        return float(LEFT + width * tokens / end)

    def y(score: float) -> float:
        return float(TOP + height * (top - score) / (top - bottom))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for score in np.arange(bottom, top + 1, 10):
        parts.append(f'<path d="M{LEFT} {y(score):.1f}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(score) + 4:.1f}" text-anchor="end">{score:.0f}</text>')
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{x(share * end):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{share * end:,.0f}</text>')
    parts.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 6}" text-anchor="middle">policy tokens</text>')
    parts.append(
        f'<text x="12" y="{TOP + height / 2}" text-anchor="middle" transform="rotate(-90 12 {TOP + height / 2})">held-out score</text>'
    )
    for i, arm in enumerate(sorted(means, key=lambda arm: -means[arm][-1])):
        colour, dash = COLOURS[i % len(COLOURS)], ("", ' stroke-dasharray="5 3"', ' stroke-dasharray="1.5 2.5"')[i // len(COLOURS) % 3]
        line = " ".join(f"{x(t):.1f},{y(s):.1f}" for t, s in zip(grid, means[arm], strict=True))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        at = TOP + 8 + 13 * i
        parts.append(f'<path d="M{WIDTH - LEGEND + 10} {at}h18" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{WIDTH - LEGEND + 34}" y="{at + 4}">{arm} ({means[arm][-1]:.1f})</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        (folder / "curves.svg").write_text(draw(folder / "curves.csv"), encoding="utf-8")
        print(folder / "curves.svg")
