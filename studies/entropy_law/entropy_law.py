"""`python -m analysis entropy-law FOLDER...`: what reward costs in entropy on the probe panel, run by run and over runs.

For every run R = -a exp(H) + b is fitted to all its looks at the panel, with the standard errors of a and b. What the law is good for is
another question: it is fitted to the first half of the looks and asked for the rewards of the second half at their entropies. Its mean
error there stands beside that of expecting no change, that is the reward of the last look of the first half. A run that lies in two places
counts once.

Source of the law: Cui et al. 2025 (arXiv 2505.22617).
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.runs import METRICS, read_run
from curriculum.collapse.indicators import EntropyLaw, fit_entropy_law
from simulator.files import check_out, jsonable, write_whole

ENTROPY, REWARD = "probe/entropy_sampled", "probe/reward"
"""Metrics of a look."""
FORECAST, STANDSTILL = "forecast_error", "standstill_error"
FIGURES = ("a", "b", "ceiling", "r_squared", FORECAST, STANDSTILL)
LEAST_LOOKS = 6
"""Looks that a run must have: three to fit by and three to be asked for."""
DIGITS = 5
"""To which looks are compared."""

Looks = tuple[tuple[str, str], ...]
"""Entropy and reward of every look, as digits."""


@dataclass(frozen=True, kw_only=True)
class LawOfRun:
    """What one run says."""

    run: str
    num_looks: int
    law: EntropyLaw
    """Of all looks."""
    forecast_error: float
    """Mean absolute error of the second half of the looks by the law of the first, in units of reward; NaN where that has none."""
    standstill_error: float
    """The same by expecting no change."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is not defined is null."""
        law = {**asdict(self.law), "ceiling": self.law.ceiling}
        rest = {"forecast_error": self.forecast_error, "standstill_error": self.standstill_error}
        return dict(jsonable({"run": self.run, "num_looks": self.num_looks, **law, **rest}))


def law_of(run: str, entropies_N: Sequence[float], rewards_N: Sequence[float]) -> LawOfRun | None:
    """The law of one run's looks, in the order they were taken; None with too few of them, or without any variation."""
    law = fit_entropy_law(entropies_N, rewards_N)
    if law is None or len(entropies_N) < LEAST_LOOKS:
        return None
    half = math.ceil(len(entropies_N) / 2)
    early, later = fit_entropy_law(entropies_N[:half], rewards_N[:half]), list(zip(entropies_N[half:], rewards_N[half:], strict=True))
    return LawOfRun(
        run=run,
        num_looks=len(entropies_N),
        law=law,
        forecast_error=float(np.mean([abs(early.reward(h) - r) for h, r in later])) if early else math.nan,
        standstill_error=float(np.mean([abs(rewards_N[half - 1] - r) for _, r in later])),
    )


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The runs in these folders: runs, sweeps, or whatever holds them.

    Raises:
        ValueError: there is no such folder, or no run in it.
    """
    found: list[Path] = []
    for folder in folders:
        runs = sorted(path.parent for path in folder.rglob(METRICS))
        if not runs:
            raise ValueError(f"FOLDER must be a run's folder or hold some, got {str(folder)!r}, which has no {METRICS} in it")
        found += runs
    return list(dict.fromkeys(found))


def read_looks(folder: Path) -> tuple[list[float], list[float]]:
    """Entropy and reward of a run's looks at its probe panel, in order; a look that lacks either is left out.

    Raises:
        ValueError: one of the run's files cannot be read.
    """
    lines = [(line.get(ENTROPY), line.get(REWARD)) for line in read_run(folder).metrics]
    looks = [(h, r) for h, r in lines if isinstance(h, int | float) and isinstance(r, int | float)]
    return [float(h) for h, _ in looks], [float(r) for _, r in looks]


def over_runs(laws: Sequence[LawOfRun]) -> dict[str, Any]:
    """Mean of every figure over the runs, with its standard error; null of fewer than two."""
    means: dict[str, Any] = {}
    for name in FIGURES:
        told = foretold(laws) if name in (FORECAST, STANDSTILL) else laws
        known = [value for value in (law.to_dict()[name] for law in told) if value is not None]
        error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
        means[name] = {"mean": float(np.mean(known)) if known else None, "error": error}
    return means


def foretold(laws: Sequence[LawOfRun]) -> list[LawOfRun]:
    """The runs whose first half has a law: only there can both ways to foretell the second be compared."""
    return [law for law in laws if not math.isnan(law.forecast_error)]


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="runs, sweeps, or folders that hold them")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write every figure there too")


def run(options: Namespace) -> int:
    """Prints the entropy law of each run and over runs."""
    check_out(options.out)
    print(entropy_law(options.folders, out=options.out))
    return 0


def entropy_law(folders: Sequence[Path], *, out: Path | None = None) -> str:
    """Fits, writes the JSON where one is asked for, and returns the table.

    Raises:
        ValueError: a folder holds no run, or no run that can be read has looks enough.
    """
    runs = run_folders(folders)
    found, num_without, left_out = dict[Looks, LawOfRun](), 0, list[str]()
    for run in runs:
        try:
            looks = read_looks(run)
        except (ValueError, OSError) as error:
            left_out.append(f"{run} is left out: {error}")
            continue
        law = law_of(str(run), *looks)
        num_without += law is None
        if law:
            found.setdefault(as_kept(looks), law)
    laws = list(found.values())
    num_again = len(runs) - len(left_out) - num_without - len(laws)
    if not laws:
        wanted = f"FOLDER must hold a run with {LEAST_LOOKS} looks at its probe panel that differ, got none among {len(runs)} runs"
        raise ValueError("; ".join([wanted, *left_out[:3]]))
    if out is not None:
        counts = {"num_without": num_without, "num_again": num_again, "left_out": left_out}
        document = {"runs": [law.to_dict() for law in laws], "over_runs": over_runs(laws), **counts}
        write_whole(out, json.dumps(document, indent=1) + "\n")
    return "\n".join([as_text(laws, num_without=num_without, num_again=num_again), *left_out])


def as_kept(looks: tuple[list[float], list[float]]) -> Looks:
    """What the same run has wherever it lies, whole or kept."""
    entropies, rewards = ([f"{value:.{DIGITS}g}" for value in values] for values in looks)
    return tuple(zip(entropies, rewards, strict=True))


def as_text(laws: Sequence[LawOfRun], *, num_without: int, num_again: int = 0) -> str:
    """A row for each run and one for all.

    Args:
        num_without: runs that have no law.
        num_again: runs that are told already, from another place.
    """
    lines = [f"{'a':>15} {'b':>15} {'ceiling':>8} {'R^2':>5} {'looks':>6} {'forecast':>9} {'no change':>10}  run"]
    for each in laws:
        law = each.law
        fitted = f"{law.a:6.3f} ± {law.a_error:6.3f} {law.b:6.3f} ± {law.b_error:6.3f} {law.ceiling:8.3f} {law.r_squared:5.2f}"
        lines.append(f"{fitted} {each.num_looks:6d} {each.forecast_error:9.3f} {each.standstill_error:10.3f}  {each.run}")
    means = over_runs(laws)
    shown = ", ".join(f"{name} {_with_error(means[name])}" for name in FIGURES)
    lines.append(f"over {len(laws)} runs (mean ± standard error between runs): {shown}")
    both = foretold(laws)
    better = sum(each.forecast_error < each.standstill_error for each in both)
    without = f"; in {len(laws) - len(both)} more the first half has no law" if len(both) < len(laws) else ""
    lines.append(f"the law of the first half foretold the second better than no change in {better} of {len(both)} runs{without}")
    if num_without:
        lines.append(f"{num_without} more runs have fewer than {LEAST_LOOKS} looks, or looks that do not differ")
    if num_again:
        lines.append(f"{num_again} more runs have the same looks as one above: the same run in another place, which counts once")
    return "\n".join(lines)


def _with_error(figure: Mapping[str, float | None]) -> str:
    mean, error = figure["mean"], figure["error"]
    return "unknown" if mean is None else f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}")
