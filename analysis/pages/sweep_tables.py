"""What a sweep came to, as tables for a spreadsheet: the contrasts with their tests, the arms with their spread between seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.drawing.figures import as_csv
from simulator.files import write_whole

VERDICT = (
    *("a", "b", "endpoint", "pairs", "difference", "low", "high", "p", "p_holm"),
    *("probability_of_improvement", "probability_low", "probability_high", "minimal_detectable_effect", "at_p", "answer"),
)
ARMS = ("arm", "endpoint", "runs", "mean", "low", "high", "iqm", "sd", "min", "max")


def write_tables(folder: Path, found: Mapping[str, Any]) -> list[Path]:
    """Writes `verdict.csv` and `arms.csv` of a comparison into the sweep's folder; returns their paths."""
    tables = {"verdict.csv": (VERDICT, verdict_rows(found)), "arms.csv": (ARMS, arm_rows(found))}
    return [write_whole(folder / name, as_csv(header, rows)) for name, (header, rows) in tables.items()]


def verdict_rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every contrast on every endpoint that its pairs measured; the primary one comes first, and it alone is answered."""
    primary = found["plan"]["primary"]
    for contrast in found["contrasts"]:
        for name, endpoint in sorted(contrast["endpoints"].items(), key=lambda pair: pair[0] != primary):
            if endpoint is None:
                continue
            d, better, least = (endpoint[key] for key in ("difference", "probability_of_improvement", "minimal_detectable_effect"))
            yield (
                *(contrast["a"], contrast["b"], name, endpoint["num_pairs"], d["value"], d["low"], d["high"]),
                *(endpoint["p"], endpoint["p_holm"], better["value"], better["low"], better["high"]),
                *(least["effect"], least["alpha"], contrast["answer"] if name == primary else None),
            )


def arm_rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every arm whose runs may be averaged on every endpoint that they measured."""
    for arm, record in found["arms"].items():
        for name, spread in (record.get("endpoints") or {}).items():
            if spread is not None:
                mean = spread["mean"]
                extremes = (spread[key] for key in ("sd", "min", "max"))
                yield (arm, name, spread["num_runs"], mean["value"], mean["low"], mean["high"], spread["iqm"]["value"], *extremes)
