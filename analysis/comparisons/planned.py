"""What a sweep set out to compare, kept in its folder since it started."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.endpoints import ENDPOINTS, UNDIRECTED
from analysis.shapes import EACH, NUMBER, TEXT, Shape, misfit
from simulator.files import write_whole

PLAN = "plan.json"

THRESHOLD = 60.0
"""Held-out score whose first reaching is timed where a plan names no other, as none did once."""

PLAN_SHAPE: Shape = {
    **{key: [TEXT] for key in ("read", "arms", "varied", "overrides")},
    "contrasts": [(TEXT, TEXT)],
    "primary": TEXT,
    "tuning": {EACH: TEXT},
    "seeds": [NUMBER],
    "threshold": NUMBER,
}

Contrast = tuple[str, str]
"""Two arms, the first one less the second; the second may be a pattern (`fixed_*`), which means the best arm that fits it."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The comparison that an experiment's file names, whichever of its arms were run."""

    contrasts: tuple[Contrast, ...]
    """All of the file: the family over which Holm corrects."""
    primary: str
    """The endpoint that decides."""
    read: tuple[str, ...] = ()
    """Endpoints, or other numbers of `summary.json`, that the experiment is read by besides; they are described."""
    tuning: Mapping[str, str] = field(default_factory=dict)
    """By arm or pattern, what was tried before its settings were fixed."""
    seeds: tuple[int, ...] = ()
    """All of the file, whichever were asked for; empty where a plan was kept before they were."""
    arms: tuple[str, ...] = ()
    """As `seeds`."""
    varied: tuple[str, ...] = ()
    """Settings that some arm of the file changes, by their dotted names."""
    overrides: tuple[str, ...] | None = None
    """Settings for all arms that were given on the command line; None where a plan was kept before they were."""
    threshold: float = THRESHOLD
    """Emotion whose first reaching is timed, 0-100; described, and of no account for whether two plans are one."""

    def refuse_other(self, folder: Path) -> None:
        """Raises where a sweep was started with another plan.

        Raises:
            ValueError: it had other contrasts or another endpoint.
        """
        before = read_planned(folder)
        if before is None:
            return
        if (before.contrasts, before.primary) != (self.contrasts, self.primary):
            raise ValueError(
                f"{folder / PLAN} must have the experiment's contrasts and endpoint ({self.words()}), got {before.words()}; "
                "take another name= for the sweep"
            )

    def keep(self, folder: Path) -> None:
        """Writes it down when the sweep starts; a later sitting finds it there, and may add seeds and arms but take none away.

        Raises:
            ValueError: as `refuse_other`.
        """
        self.refuse_other(folder)
        before = read_planned(folder)
        whole = self if before is None else self.grown_from(before)
        if before != whole:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / PLAN, json.dumps(asdict(whole), indent=1, ensure_ascii=False) + "\n")

    def grown_from(self, before: Planned) -> Planned:
        """This plan with the seeds and arms of an earlier sitting's."""
        arms = tuple(dict.fromkeys([*self.arms, *before.arms]))
        return replace(self, seeds=tuple(sorted({*before.seeds, *self.seeds})), arms=arms)

    def tuning_of(self, arm: str) -> str:
        """What was tried before an arm's settings were fixed; empty where the plan does not say."""
        return next((said for pattern, said in self.tuning.items() if fnmatch.fnmatch(arm, pattern)), "")

    @property
    def num_runs(self) -> int:
        """How many runs the file asks for; 0 where the plan does not say."""
        return len(self.seeds) * len(self.arms)

    def words(self) -> str:
        """Its contrasts and endpoint."""
        return f"{', '.join(':'.join(contrast) for contrast in self.contrasts) or 'no contrast'} on {self.primary}"


@dataclass(frozen=True, kw_only=True)
class KeptPlan:
    """What a sweep's folder keeps of its plan, as far as it can be read."""

    planned: Planned | None = None
    notes: Sequence[str] = ()
    """What cannot be read, a sentence each."""
    is_torn: bool = False
    """Whether there is a plan that cannot be read."""

    @property
    def read(self) -> Sequence[str]:
        """What the sweep is read by beside the primary endpoint; nothing without a plan."""
        return self.planned.read if self.planned else ()


def read_kept_plan(folder: Path) -> KeptPlan:
    """The plan in a sweep's folder; one that is torn is said to be, and the runs are compared all the same."""
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
        kept = read_shaped(path, PLAN_SHAPE)
        contrasts = tuple((str(a), str(b)) for a, b in kept["contrasts"])
        seeds = tuple(int(seed) for seed in kept.get("seeds", ()))
        arms = tuple(str(arm) for arm in kept.get("arms", ()))
        overrides = kept.get("overrides")
        require_endpoint("primary", kept["primary"])
        threshold = float(kept.get("threshold", THRESHOLD))
        require_threshold("threshold", threshold)
        return Planned(
            contrasts=contrasts,
            primary=str(kept["primary"]),
            read=tuple(map(str, kept.get("read", ()))),
            tuning=dict(kept["tuning"]),
            seeds=seeds,
            arms=arms,
            varied=tuple(map(str, kept.get("varied", ()))),
            overrides=None if overrides is None else tuple(map(str, overrides)),
            threshold=threshold,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold the sweep's contrasts, got something else ({in_words(error)}); "
            "delete it, and the sweep's own command writes it anew"
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

    Args:
        name: as in `require_endpoint`.

    Raises:
        ValueError: it is not in [0, 100].
    """
    if not 0.0 <= value <= 100.0:
        raise ValueError(f"{name} must be in [0, 100], got {value!r}")


def in_words(error: Exception) -> str:
    """What is wrong with a file; of a name that is not there, Python says no more than the name."""
    return f"{error.args[0]} must be there" if isinstance(error, KeyError) else str(error)


def read_shaped(path: Path, shape: Shape) -> dict[str, Any]:
    """A JSON object of a known shape.

    Raises:
        ValueError: it is something else.
    """
    kept = json.loads(path.read_text(encoding="utf-8"))
    if said := misfit(kept, shape):
        raise ValueError(said)
    return dict(kept)
