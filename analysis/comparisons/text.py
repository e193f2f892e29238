"""A comparison for a reader: the verdict first, then contrasts, arms and what was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.clusters import Estimate
from analysis.endpoints import EMOTIONS, digits_of, sign_of, unit_of
from analysis.wording import duration, signed

NUM_SETTINGS = 6
"""Settings that are named where arms differ in more."""


def as_text(found: Mapping[str, Any]) -> str:
    """The page that the command prints."""
    rows = contrast_rows(found)
    parts = ["\n".join(found["verdict"]), columns(rows) if len(rows) > 1 else "", arms_table(found)]
    remarks = [
        *found["notes"],
        *(note for contrast in found["contrasts"] for note in contrast_notes(contrast)),
    ]
    if remarks:
        parts.append("To know:\n" + "\n".join(f"- {remark}" for remark in dict.fromkeys(remarks)))
    return "\n\n".join(part for part in parts if part)


def contrast_notes(contrast: Mapping[str, Any]) -> list[str]:
    """What must be said about a contrast besides its row."""
    name = f"{contrast['a']} - {contrast['b']}"
    if contrast["cannot"]:
        return [f"{name} cannot be computed: {contrast['cannot']}"]
    notes = [*([f"{name} is not answered: {why}."] if (why := contrast["incomplete"]) else []), *contrast["notes"]]
    differing = contrast.get("settings_that_differ", ())
    settings = [name for name in differing if not name.startswith("teacher.")]
    if settings:
        besides = "more than the teacher:" if len(settings) < len(differing) else "other settings than the teacher's:"
        more = f" and {len(settings) - NUM_SETTINGS} more" if len(settings) > NUM_SETTINGS else ""
        notes.append(f"{contrast['a']} and {contrast['b']} differ in {besides} {', '.join(settings[:NUM_SETTINGS])}{more}.")
    return notes


def contrast_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The header, and a row for each contrast on the primary endpoint."""
    primary = found["plan"]["primary"]
    rows = [
        [f"contrasts on {primary}", "answer", "difference", "95 % interval", "better in", "p", "p Holm", "P(better)", "would detect"],
    ]
    for contrast in found["contrasts"]:
        name, endpoint = f"{contrast['a']} - {contrast['b']}", contrast["endpoints"][primary]
        if endpoint is None:
            rows.append([name, contrast["answer"], *["–"] * 7])
            continue
        d, better = Estimate.from_dict(endpoint["difference"]), Estimate.from_dict(endpoint["probability_of_improvement"])
        digits, effect = digits_of(primary), endpoint["minimal_detectable_effect"]["effect"]
        wins = sum(sign_of(primary) * difference > 0 for difference in endpoint["differences"])
        # One pair is no sample: it has a difference and nothing more.
        tested = endpoint["num_pairs"] > 1
        rows.append(
            [
                name,
                contrast["answer"],
                f"{signed(d.value, digits)}{unit_of(primary)}",
                interval(d, digits) or "–",
                f"{wins} of {endpoint['num_pairs']}",
                f"{endpoint['p']:.3g}" if tested else "–",
                f"{endpoint['p_holm']:.3g}" if tested else "–",
                better.text(2) if tested else "–",
                "–" if not math.isfinite(effect) else f"{effect:.{digits}f}",
            ]
        )
    return rows


def arms_table(found: Mapping[str, Any]) -> str:
    """A line for each arm."""
    primary = found["plan"]["primary"]
    endpoints = list(dict.fromkeys([primary, *EMOTIONS]))
    rows = [["arm (mean over seeds)", "seeds", *(name.removeprefix("heldout.") for name in endpoints), "sd", "IQM", "a run took", "alarms"]]
    for arm, record in found["arms"].items():
        seeds, averaged = str(len(record["seeds"])), record.get("endpoints")
        if not averaged:
            rows.append([arm, seeds, *["–"] * (len(endpoints) + 4)])
            continue
        main, digits = averaged[primary], digits_of(primary)
        means = [mean_of(averaged[name], name, with_interval=name == primary) for name in endpoints]
        spread = "–" if main is None or not math.isfinite(main["sd"]) else f"{main['sd']:.{digits}f}"
        iqm = "–" if main is None else Estimate.from_dict(main["iqm"]).text(digits)
        wall = averaged["wall_s"]["mean"]["value"] if averaged["wall_s"] else None
        alarms = sum(len(run["alarms"]) for run in record["runs"].values())
        rows.append([arm, seeds, *means, spread, iqm, duration(wall), str(alarms)])
    return columns(rows)


def mean_of(values: Mapping[str, Any] | None, endpoint: str, *, with_interval: bool) -> str:
    """The mean over runs, with its interval where asked for."""
    if values is None:
        return "–"
    mean, digits = Estimate.from_dict(values["mean"]), digits_of(endpoint)
    return mean.text(digits) if with_interval else f"{mean.value:.{digits}f}"


def interval(estimate: Estimate, digits: int) -> str:
    """`[-1.0, 2.0]`; empty where there is none."""
    low, high = (round(bound, digits) + 0.0 for bound in (estimate.low, estimate.high))
    return "" if math.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first flush left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    )
