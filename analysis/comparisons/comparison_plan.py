"""What of a sweep is compared: what was asked for, else its own plan, else what was named before."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import stats
from analysis.comparisons.planned import THRESHOLD, Contrast, Planned, require_endpoint, require_threshold
from analysis.comparisons.sweep import Sweep
from analysis.endpoints import AUC, ENDPOINTS, UNDIRECTED

COMPARISON = "comparison.json"
FAVOURITE = "frontier"
"""The arm that is set against every other one where no contrast is named."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared, fixed before it is looked at."""

    contrasts: Sequence[Contrast] = ()
    """The family over which Holm corrects; none means `FAVOURITE` against every other arm, or every pair of arms."""
    primary: str = AUC
    """One of `ENDPOINTS`."""
    threshold: float = THRESHOLD
    """Emotion whose first reaching is timed, 0-100."""
    seed: int = 0
    """Of the bootstrap, >= 0."""
    num_resamples: int = stats.NUM_RESAMPLES
    """Draws for an interval, > 0."""

    @property
    def resampling(self) -> stats.Resampling:
        """For the intervals that are resampled."""
        return {"seed": self.seed, "num_resamples": self.num_resamples}

    def __post_init__(self) -> None:
        require_endpoint("--primary", self.primary)
        require_threshold("--threshold", self.threshold)
        if self.seed < 0:
            raise ValueError(f"--bootstrap-seed must be at least 0, got {self.seed!r}")
        for a, b in self.contrasts:
            if a == b:
                raise ValueError(f"--contrast must name two arms, got {a!r} twice")
        if twice := [contrast for contrast, num in Counter(self.contrasts).items() if num > 1]:
            raise ValueError(f"--contrast must name each contrast once, got {':'.join(twice[0])} more often")


def plan_of(
    sweep: Sweep, *, contrasts: Sequence[Contrast] = (), primary: str | None = None, threshold: float | None = None, seed: int = 0
) -> Plan:
    """What is compared: what was asked for, else the sweep's own plan, else what the comparison beside the runs named."""
    kept = sweep.plan.planned or named_before(sweep.folder)
    if kept is None:
        kept = Planned(contrasts=(), primary=AUC)
    return Plan(
        contrasts=contrasts or kept.contrasts,
        primary=primary or kept.primary,
        threshold=kept.threshold if threshold is None else threshold,
        seed=seed,
    )


def named_before(folder: Path) -> Planned | None:
    """What was named for the comparison beside the runs; None where there is none, or nothing was."""
    try:
        kept = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))["plan"]
        contrasts = tuple(dict.fromkeys((str(a), str(b)) for a, b in kept["contrasts"]))
        named = kept["chosen_by"] == "name" and kept["primary"] in ENDPOINTS and kept["primary"] not in UNDIRECTED
        return Planned(contrasts=contrasts, primary=kept["primary"]) if named else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def holds_more(path: Path, plan: Mapping[str, Any]) -> str:
    """What a comparison that is kept has and a new one would lose, in words: all seeds, or what was planned; empty for neither.

    Args:
        plan: of the new one, as `comparison.json` has it.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))["plan"]
        by, has_all = kept["chosen_by"], kept.get("only_seeds") is None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    if has_all and plan["only_seeds"] is not None:
        return "all seeds"
    return "what was planned" if has_all and by == "plan" and plan["chosen_by"] != "plan" else ""


def default_contrasts(arms: Sequence[str]) -> list[Contrast]:
    """The favourite against the others, or every pair of arms."""
    if FAVOURITE in arms:
        return [(FAVOURITE, arm) for arm in arms if arm != FAVOURITE]
    return [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :]]


def contrasts_of(plan: Plan, planned: Planned | None, sweep: Sweep) -> tuple[Sequence[Contrast], str]:
    """The contrasts that are computed, and by what they were chosen.

    Where each contrast of the sweep's own plan is with an arm that has no run here, those that follow from the arms with runs take their
    place (`instead`): what is there is described all the same.
    """
    by = chosen_by(plan, planned)
    if by != "plan":
        return plan.contrasts or default_contrasts(sweep.arms), by
    there = [arm for arm in sweep.arms if sweep.of(arm)]
    if len(there) < 2 or any(a in there and fnmatch.filter(there, b) not in ([], [a]) for a, b in plan.contrasts):
        return plan.contrasts, by
    return default_contrasts(there), "instead"


def chosen_by(plan: Plan, planned: Planned | None) -> str:
    """`plan` where it is the sweep's own, `name` where contrasts were named otherwise, else `default`."""
    if planned is not None and planned.contrasts and (set(plan.contrasts), plan.primary) == (set(planned.contrasts), planned.primary):
        return "plan"
    return "name" if plan.contrasts else "default"
