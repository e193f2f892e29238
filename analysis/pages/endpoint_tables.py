"""Endpoints on the page of a sweep as tables: the mean of each arm, and beneath it the contrasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from analysis.clusters import Estimate
from analysis.comparisons.text import interval
from analysis.endpoints import ERRORS, FORGOTTEN, IN_WORDS, digits_of
from analysis.wording import grid_table

MEAN, DIFFERENCE = "mean over seeds", "paired difference over seeds"
NOTES = {
    FORGOTTEN: "What was forgotten: for the held-out users of each strictness the best look on the small grid less the last one, mean over "
    "these, in points of emotion. The best of noisy looks lies above the last one even where nothing is forgotten: read the differences.",
}
"""What must be known to read an endpoint."""


def read_by(found: Mapping[str, Any], arms: Sequence[str]) -> str:
    """The endpoints that the sweep's plan names besides the primary one; empty where it names none, or no run measured them."""
    names = found["plan"]["read"]
    tables = endpoint_tables(found, arms, {name: IN_WORDS.get(name, name) for name in names})
    if not tables:
        return ""
    notes = [NOTES[name] for name in names if name in NOTES]
    said = escape(" ".join([*notes, "Described, with 95% intervals; the verdict is on the primary endpoint alone."]))
    return f'<h2>What this experiment is read by</h2><p class="note">{said}</p>{tables}'


def endpoint_tables(found: Mapping[str, Any], arms: Sequence[str], headings: Mapping[str, str], *, mean: str = MEAN) -> str:
    """A row for each arm that measured one of the endpoints, and one for each contrast if any pair did; empty where no run did.

    Args:
        headings: of the columns, by endpoint.
        mean: what the arms' figures are.
    """
    averaged = {arm: (found["arms"].get(arm) or {}).get("endpoints") or {} for arm in arms}
    measured = [arm for arm in arms if any(averaged[arm].get(name) for name in headings)]
    if not measured:
        return ""
    rows = [[arm, *(told((averaged[arm].get(name) or {}).get("mean"), name) for name in headings)] for arm in measured]
    tables = grid_table((mean, *headings.values()), rows)
    contrasts = [
        [
            f"{contrast['a']} less {contrast['b']}",
            *(told((contrast["endpoints"].get(name) or {}).get("difference"), name, sign="+") for name in headings),
        ]
        for contrast in found["contrasts"]
    ]
    if any(cell != "–" for row in contrasts for cell in row[1:]):
        tables += grid_table((DIFFERENCE, *headings.values()), contrasts)
    return tables


def told(estimate: Mapping[str, float | None] | None, name: str, *, sign: str = "") -> str:
    """A figure with its interval; changes with their sign, shares of errors in percentage points."""
    if estimate is None:
        return "–"
    found, digits = Estimate.from_dict(estimate), digits_of(name)
    sign = "+" if name.endswith(".change") else sign
    if name in ERRORS:
        found, digits = Estimate(value=100 * found.value, low=100 * found.low, high=100 * found.high), 1
    return f"{found.value:{sign}.{digits}f} {interval(found, digits)}".strip()
