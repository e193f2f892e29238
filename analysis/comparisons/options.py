"""What `python -m analysis compare` takes."""

from __future__ import annotations

import argparse
from pathlib import Path


def comparison_options(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="a sweep's folder, with runs as <arm>/seed_<n>, or a results.csv")
    parser.add_argument(
        "--contrast",
        action="append",
        type=contrast,
        default=[],
        metavar="A:B",
        help="arm A less arm B; several make the family for Holm. B may be a pattern such as 'fixed_*': the best arm that fits. "
        "Default: the sweep's plan; without one, those of the comparison that is there, frontier against every other arm, or every pair",
    )
    parser.add_argument("--primary", metavar="ENDPOINT", help="what decides, a number of summary.json (the plan's, else heldout.auc)")
    parser.add_argument("--seeds", type=seeds, metavar="FIRST-LAST", help="only runs with these seeds, such as 0-4; default all")
    parser.add_argument("--threshold", type=float, help="emotion, 0-100, whose first reaching is timed (the plan's, else 60)")
    parser.add_argument("--bootstrap-seed", type=int, default=0, help="of the intervals that are resampled (0)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.json",
        help="default SWEEP/comparison.json, unless what was planned lies there and this is something else; of a results.csv none",
    )


def contrast(text: str) -> tuple[str, str]:
    """Two arms.

    Raises:
        ArgumentTypeError: they are not two.
    """
    a, colon, b = text.partition(":")
    if not (a and colon and b) or a == b:
        raise argparse.ArgumentTypeError(f"must name two arms as A:B, got {text!r}")
    return a, b


def seeds(text: str) -> range:
    """The seeds from the first to the last.

    Raises:
        ArgumentTypeError: they are not such.
    """
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last.isdecimal() or text == first) or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"must be FIRST-LAST or one seed, got {text!r}")
    return range(int(first), int(last or first) + 1)
