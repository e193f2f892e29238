"""The plan of a sweep: contrasts and endpoint, kept in its folder since it started (`plan.json`)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from analysis.endpoints import ENDPOINTS, UNDIRECTED
from simulator.files import write_whole
from simulator.settings import message

PLAN = "plan.json"
THRESHOLD = 60.0
"""Held-out score whose first reaching is timed where a plan names no other."""

Contrast = tuple[str, str]
"""Two arms, the first one less the second; the second may be a pattern (`fixed_*`), which means the best arm that fits it."""


class Planned(BaseModel):
    """The comparison that an experiment's file names, whichever of its arms were run; `plan.json` of a sweep."""

    model_config = ConfigDict(frozen=True)

    contrasts: tuple[Contrast, ...]
    """All of the file: the family over which Holm corrects."""
    primary: str
    """The endpoint that decides."""
    read: tuple[str, ...] = ()
    """Further endpoints or other numbers of `summary.json` to describe; `-name` is a study's own number of which less is better."""
    tuning: dict[str, str] = {}
    """By arm or pattern, the tuning before its settings were fixed."""
    seeds: tuple[int, ...] = ()
    """All of the file, whichever were asked for; empty in plans of the first edition."""
    arms: tuple[str, ...] = ()
    """As `seeds`."""
    varied: tuple[str, ...] = ()
    """Settings that some arm of the file changes, by their dotted names."""
    overrides: tuple[str, ...] | None = None
    """Settings for all arms that were given on the command line; None in plans of the first edition."""
    threshold: float = THRESHOLD
    """Emotion whose first reaching is timed, 0-100."""

    def refuse_other(self, folder: Path) -> None:
        """Raises where a sweep was started with another plan.

        Raises:
            ValueError: it had other contrasts or another endpoint.
        """
        before = read_planned(folder)
        if before and (before.contrasts, before.primary) != (self.contrasts, self.primary):
            raise ValueError(
                f"{folder / PLAN} must have the experiment's contrasts and endpoint ({self.words()}), got {before.words()}; "
                "take another name= for the sweep"
            )

    def keep(self, folder: Path) -> None:
        """Writes it when the sweep starts; a resumed sweep may add seeds and arms but take none away.

        Raises:
            ValueError: as `refuse_other`.
        """
        self.refuse_other(folder)
        before, whole = read_planned(folder), self
        if before:
            arms, seeds = tuple(dict.fromkeys([*self.arms, *before.arms])), tuple(sorted({*before.seeds, *self.seeds}))
            whole = self.model_copy(update={"arms": arms, "seeds": seeds})
        if before != whole:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / PLAN, whole.model_dump_json(indent=1) + "\n")

    def tuning_of(self, arm: str) -> str:
        """The tuning before an arm's settings were fixed; empty where the plan does not say."""
        return next((tuning for pattern, tuning in self.tuning.items() if fnmatch.fnmatch(arm, pattern)), "")

    @property
    def num_runs(self) -> int:
        """How many runs the file asks for; 0 where the plan does not say."""
        return len(self.seeds) * len(self.arms)

    def words(self) -> str:
        """Its contrasts and endpoint."""
        return f"{', '.join(':'.join(contrast) for contrast in self.contrasts) or 'no contrast'} on {self.primary}"


@dataclass(frozen=True, kw_only=True)
class KeptPlan:
    """The plan in a sweep's folder, as far as it can be read."""

    planned: Planned | None = None
    notes: Sequence[str] = ()
    """Why it cannot be read, a sentence each."""
    is_torn: bool = False
    """Whether there is a plan that cannot be read."""

    @property
    def read(self) -> Sequence[str]:
        """Numbers of the summaries that are described in addition to the primary endpoint; none without a plan."""
        return [name.removeprefix("-") for name in self.planned.read] if self.planned else ()

    @property
    def lower(self) -> Sequence[str]:
        """Those of `read` of which less is better."""
        return [name.removeprefix("-") for name in self.planned.read if name.startswith("-")] if self.planned else ()


def read_kept_plan(folder: Path) -> KeptPlan:
    """The plan in a sweep's folder; the runs can be compared without one that cannot be read."""
    try:
        return KeptPlan(planned=read_planned(folder))
    except ValueError as error:
        return KeptPlan(notes=[f"What was planned is not known: {error}."], is_torn=True)


def read_planned(folder: Path) -> Planned | None:
    """The plan in a sweep's folder; None where there is none.

    Raises:
        ValueError: the file holds something else.
    """
    path = folder / PLAN
    if not path.is_file():
        return None
    try:
        planned = Planned.model_validate_json(path.read_bytes())
        require_endpoint("primary", planned.primary)
        require_threshold("threshold", planned.threshold)
        return planned
    except ValueError as error:
        wrong = message(error) if isinstance(error, ValidationError) else str(error)
        raise ValueError(
            f"{path} must hold the sweep's contrasts, got something else ({wrong}); delete it, and the sweep's own command writes it again"
        ) from error


def require_endpoint(name: str, value: Any) -> None:
    """Raises unless an endpoint can decide.

    Args:
        name: of the setting or option that names it.

    Raises:
        ValueError: it is none, or has no better end.
    """
    if value not in ENDPOINTS:
        raise ValueError(f"{name} must be one of {', '.join(ENDPOINTS)}, got {value!r}")
    if value in UNDIRECTED:
        raise ValueError(f"{name} must be an endpoint of which more, or less, is better, got {value!r}, which only describes")


def require_threshold(name: str, value: float) -> None:
    """Raises unless a threshold is an emotion.

    Raises:
        ValueError: it is not in [0, 100].
    """
    if not 0.0 <= value <= 100.0:
        raise ValueError(f"{name} must be in [0, 100], got {value!r}")
