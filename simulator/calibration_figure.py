"""The figure of a calibration, as SVG: realised against commanded strictness, and each rung's place in each family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from simulator.calibration import DISPLEASED, PLEASED, Curve, Place
from simulator.scenario import Family
from simulator.skills import Skill, skill_table

WIDE, HIGH = 420, 340
LEFT, TOP, BOTTOM = 58, 64, 58
PANEL = LEFT + WIDE + 40
INK, SOFT, FAMILY, BOLD, FAIL = "#222222", "#8a8a8a", "#9db8d9", "#1f4e8c", "#b3261e"
STYLE = "font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px"


def figure(overall: Curve, families: Mapping[Family, Curve], places: Mapping[Family, Mapping[str, Place]], *, title: str) -> str:
    """The figure as a text.

    Args:
        places: of each family's rungs; without any, there is only the left half.
    """
    width, height = PANEL * (2 if places else 1) + 10, TOP + HIGH + BOTTOM
    parts = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>', words(LEFT, 22, title, size=15)]
    parts += curves(overall, list(families.values()))
    if places:
        parts += rungs(places, PANEL)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" style="{STYLE}"'
    label = "Realised strictness over commanded strictness" + (", and the scores of each rung beside its place" if places else "")
    return "\n".join([f'{head} role="img" aria-label="{label}">', *parts, "</svg>", ""])


def curves(overall: Curve, families: Sequence[Curve]) -> Iterator[str]:
    """Left half: families pale, all of them together on top, the diagonal dashed, where each skill begins to count above."""
    low, high = min(0.0, *overall.realised, *(min(f.realised) for f in families)), max(1.0, *(max(f.realised) for f in families))

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + x * WIDE, TOP + HIGH * (high - y) / (high - low)

    for k in range(6):
        (x, y), (right, bottom) = at(k / 5, k / 5), at(1.0, low)
        yield line(LEFT, y, right, y, "#e6e6e6")
        yield words(LEFT - 8, y + 4, f"{k / 5:.1f}", anchor="end")
        yield words(x, bottom + 18, f"{k / 5:.1f}", anchor="middle")
    for skill in Skill:
        x, top = at(skill_table()["onset"][skill], high)
        yield line(x, top, x, at(0, low)[1], "#d8d8d8", dash="2 3")
        yield words(x, TOP - 6, skill, anchor="middle", size=10, colour=SOFT)
    yield line(*at(0.0, 0.0), *at(1.0, 1.0), SOFT, dash="5 4")
    for curve in families:
        yield path([at(*point) for point in zip(curve.levels, curve.realised, strict=True)], FAMILY, 1)
    points = [at(*point) for point in zip(overall.levels, overall.realised, strict=True)]
    yield path(points, BOLD, 2.5)
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BOLD}"/>' for x, y in points)
    yield words(LEFT + WIDE / 2, TOP + HIGH + 40, "commanded strictness (above: where each skill begins to count)", anchor="middle")
    yield words(16, TOP + HIGH / 2, "realised strictness", anchor="middle", turned=True)
    right = LEFT + WIDE - 10
    yield line(right - 150, TOP + HIGH - 36, right - 130, TOP + HIGH - 36, BOLD, width=2.5)
    yield words(right - 124, TOP + HIGH - 32, f"all ({overall.num_dialogues:,} dialogues)")
    yield line(right - 150, TOP + HIGH - 18, right - 130, TOP + HIGH - 18, FAMILY)
    yield words(right - 124, TOP + HIGH - 14, f"each of {len(families)} families")


def rungs(places: Mapping[Family, Mapping[str, Place]], left: float) -> Iterator[str]:
    """Right half: a column for each rung, a dot for each family below the next skill's onset, a ring above that of the one after."""
    names = list(next(iter(places.values())))
    column = WIDE / len(names)

    def y_of(score: float) -> float:
        return TOP + HIGH * (1.0 - score / 100.0)

    for score in (0, 20, 40, 60, 80, 100):
        yield line(left + LEFT, y_of(score), left + LEFT + WIDE, y_of(score), "#e6e6e6")
        yield words(left + LEFT - 8, y_of(score) + 4, f"{score}", anchor="end")
    for bound in (PLEASED, DISPLEASED):
        yield line(left + LEFT, y_of(bound), left + LEFT + WIDE, y_of(bound), INK, dash="5 4")
    for k, name in enumerate(names):
        centre = left + LEFT + column * (k + 0.5)
        yield words(centre, TOP + HIGH + 18, name, anchor="middle")
        for i, by_rung in enumerate(places.values()):
            x, place = centre + (i / max(1, len(places) - 1) - 0.5) * column * 0.6, by_rung[name]
            if place.below is not None:
                yield dot(x, y_of(place.below), BOLD if place.below >= PLEASED else FAIL, filled=True)
            if place.above is not None:
                yield dot(x, y_of(place.above), BOLD if place.above < DISPLEASED else FAIL, filled=False)
    yield words(left + 16, TOP + HIGH / 2, "mean final emotion", anchor="middle", turned=True)
    yield words(left + LEFT + WIDE / 2, TOP + HIGH + 40, "rung of the ladder; a mark for each family", anchor="middle")
    yield dot(left + LEFT + 6, TOP - 30, BOLD, filled=True)
    yield words(left + LEFT + 14, TOP - 26, "just below the next skill's onset (L6: at .9): at least 70", size=11)
    yield dot(left + LEFT + 6, TOP - 14, BOLD, filled=False)
    yield words(left + LEFT + 14, TOP - 10, "just above the onset after it: below 40", size=11)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "", width: float = 1) -> str:
    """A straight line."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"{dashes}/>'


def path(points: Sequence[tuple[float, float]], colour: str, width: float) -> str:
    """Points joined by straight lines."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def dot(x: float, y: float, colour: str, *, filled: bool) -> str:
    """A dot or a ring."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour if filled else "#ffffff"}" stroke="{colour}" stroke-width="1.2"/>'


def words(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = INK, turned: bool = False) -> str:
    """A line of text."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{turn}>{escape(text)}</text>'
