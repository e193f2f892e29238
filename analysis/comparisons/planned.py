"""What a sweep set out to compare, kept in its folder since it started, and which of its arms were chosen on other runs."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.endpoints import ENDPOINTS, UNDIRECTED
from analysis.shapes import EACH, NUMBER, TEXT, Complete, Shape, misfit
from simulator.drafts import write_whole

PLAN = "plan.json"
CHOSEN = "chosen.json"

THRESHOLD = 60.0
"""Held-out score whose first reaching is timed where a plan names no other, as none did once."""

PLAN_SHAPE: Shape = {
    **{key: [TEXT] for key in ("read", "arms", "varied", "overrides")},
    "contrasts": [(TEXT, TEXT)],
    "primary": TEXT,
    "tuning": {EACH: TEXT},
    "choose": {"best": [TEXT]},
    "seeds": [NUMBER],
    "threshold": NUMBER,
}
CHOSEN_SHAPE: Shape = {"picks": [Complete(pattern=TEXT, arm=TEXT, means={EACH: NUMBER})]}

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
    """Endpoints that the experiment is read by besides: every contrast describes them, and the page shows them."""
    tuning: Mapping[str, str] = field(default_factory=dict)
    """By arm or pattern, what was tried before its settings were fixed."""
    choose: Mapping[str, Any] | None = None
    """From which other sweep the best of several arms is taken."""
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
            ValueError: it had other contrasts, another endpoint, or chose its arms otherwise.
        """
        before = read_planned(folder)
        if before is None:
            return
        if (before.contrasts, before.primary) != (self.contrasts, self.primary):
            raise ValueError(
                f"{folder / PLAN} must have the experiment's contrasts and endpoint ({self.words()}), got {before.words()}; "
                "take another name= for the sweep"
            )
        if before.choose != self.choose:
            raise ValueError(f"{folder / PLAN} has choose {before.choose}, the experiment {self.choose}; take another name= for the sweep")

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
        # Where arms are chosen, those of before may hold candidates that were not.
        arms = self.arms if self.choose else tuple(dict.fromkeys([*self.arms, *before.arms]))
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
class Chosen:
    """The best of the arms that fit a pattern, found on runs of another sweep."""

    pattern: str
    arm: str
    candidates: list[str]
    origin: str
    """The other sweep, as `<experiment>/<name>`."""
    seeds: str
    endpoint: str

    def sentence(self) -> str:
        """Where it was chosen."""
        return (
            f"{self.arm} was chosen as the best {self.pattern} on seeds {self.seeds} of {self.origin} ({self.endpoint}), not on these runs."
        )


@dataclass(frozen=True, kw_only=True)
class KeptPlan:
    """What a sweep's folder keeps of its plan, as far as it can be read."""

    planned: Planned | None = None
    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    """By pattern, the arms that were chosen on other runs."""
    notes: Sequence[str] = ()
    """What cannot be read, a sentence each."""
    is_torn: bool = False
    """Whether there is a plan that cannot be read."""


def read_kept_plan(folder: Path) -> KeptPlan:
    """Both files of a sweep's folder; one that is torn costs what it held, and the runs are compared all the same."""
    notes = []
    is_torn = False
    try:
        planned = read_planned(folder)
    except ValueError as error:
        planned, is_torn = None, True
        notes.append(f"What was planned is not known: {error}.")
    try:
        chosen = read_chosen(folder)
    except ValueError as error:
        chosen = {}
        notes.append(f"Which arms were chosen on other runs is not known: {error}.")
    return KeptPlan(planned=planned, chosen=chosen, notes=notes, is_torn=is_torn)


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
            choose=kept["choose"],
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


def read_chosen(folder: Path) -> dict[str, Chosen]:
    """By pattern, the arms that were chosen on other runs.

    Raises:
        ValueError: the file holds something else.
    """
    path = folder / CHOSEN
    if not path.is_file():
        return {}
    try:
        kept = read_shaped(path, CHOSEN_SHAPE)
        said = {name: str(kept[name]) for name in ("origin", "seeds", "endpoint")}
        return {
            pick["pattern"]: Chosen(pattern=pick["pattern"], arm=pick["arm"], candidates=sorted(pick["means"]), **said)
            for pick in kept["picks"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must hold what was chosen, got something else ({in_words(error)}); delete it to choose anew") from error
