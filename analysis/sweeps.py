"""What a sweep set out to compare, kept in its folder since it started.

Remarks of a comparison, which know what they are about: a page that says it already need not read it off their words.

A sweep folder as data: `<folder>/<arm>/seed_<n>/`, each an ordinary run directory, reduced to what comparisons need.

A run that cannot be used is left out with one sentence that says why; the others are read all the same.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np

from analysis.endpoints import (
    AUC,
    COMPUTED,
    ENDPOINTS,
    FORGOTTEN,
    GAIN,
    UNDIRECTED,
    Curve,
    Grade,
    area_under_curves,
    check_curve,
    common_curves,
    curve_of,
    forgotten,
    hold_last,
    lacks_dialogues,
    lacks_looks,
    looks,
    read_grades,
)
from analysis.runs import EACH, NUMBER, OF_A_SITTING, TEXT, Run, Shape, lacks_provenance, leaves, misfit, read_run, setting, why_no_copy
from simulator.files import progress, write_whole
from simulator.version import recorded_world

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


class NoteKind(Enum):
    """What a remark says of an arm."""

    REMARK = auto()
    """Something about its runs, which count all the same."""
    LEFT_OUT = auto()
    """The runs of these seeds cannot be used."""
    NO_RUN = auto()
    """It has none that can."""
    LACKS_SEEDS = auto()
    """It has none of these seeds, so nothing is paired on them."""


class Note(str):
    """A sentence, and what it is about."""

    __slots__ = ("arm", "kind", "seeds")

    kind: NoteKind
    arm: str
    seeds: tuple[int, ...]

    def __new__(cls, text: str, *, arm: str, seeds: tuple[int, ...] = (), kind: NoteKind = NoteKind.REMARK) -> Note:
        note = super().__new__(cls, text)
        note.kind, note.arm, note.seeds = kind, arm, seeds
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (str(self),), {"arm": self.arm, "seeds": self.seeds, "kind": self.kind}


def no_run(arm: str) -> Note:
    """That an arm, or each that fits a pattern, has nothing to compare."""
    return Note(f"{arm} has no run that can be used.", arm=arm, kind=NoteKind.NO_RUN)


BY_ITSELF = ("name", "seed", "resume", "runs", "experiment")
"""Settings in which two runs of a comparison may differ without being unlike."""
NO_MATTER = (*OF_A_SITTING, "teacher.trace", "simulator.profiles", "simulator.heldout_profiles")
"""Beginnings of further settings in which runs of one arm may differ: where they ran, what was saved, and whom they copied."""
BUDGETS = ("budget.policy_tokens", "budget.steps")
"""Settings that end a run; 0 steps are no limit."""
WITH_KINDS = ("teacher.", "algorithm.", "simulator.")
"""Groups whose settings depend on a kind."""
OF_THE_START = ("policy.model", "policy.prior.", "policy.thinking")
"""Beginnings of the settings that decide which weights a run begins with."""
SHORT = 0.98
"""A run whose last look lies before this share of the common range is named, because its last score is held to the end."""

Cell = tuple[str, float]
"""Family and strictness."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one training run contributes to a comparison."""

    arm: str
    seed: int
    world: str
    """Its name and version, `world-1`; of runs older than versions that are not mapped to one, a hash of source files."""
    settings: dict[str, Any]
    """By dotted name."""
    commits: tuple[str, ...]
    """States of the code that it ran on; empty where that was not recorded."""
    initial_policy: str
    """A digest of the weights it began with; empty where that was not recorded."""
    scalars: dict[str, float | None]
    """By endpoint; None for what the run did not measure."""
    alarms: list[str]
    """Names, in the order they went off."""
    curve: Curve | None
    """Mean final emotion, 0-100, on the smaller held-out grid; None without evaluations."""
    cells: dict[Cell, float]
    """Mean final emotion, 0-100, at the last full evaluation."""
    num_judged: int | None = None
    """Dialogues in its score at the end; None where the run did not count them."""
    expert: float | None = None
    """What the scripted expert L6 scored with the same users, 0-100; None where the run did not look."""

    @property
    def name(self) -> str:
        """As it is called in sentences."""
        return f"{self.arm}/seed_{self.seed}"

    @property
    def budget(self) -> int:
        """Policy tokens that it was allowed."""
        return int(self.settings["budget.policy_tokens"])


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The usable runs of a folder, and what is to be said about the others."""

    folder: Path
    arms: list[str]
    """All that have a folder, sorted, with usable runs or without."""
    runs: list[RunResult]
    notes: list[str]
    auc_ends: dict[int, float]
    """Tokens to which areas under curves reach, by budget."""
    plan: KeptPlan = field(default_factory=KeptPlan)
    only_seeds: tuple[int, ...] | None = None
    """Those that were asked for; None where all were."""

    def of(self, arm: str) -> dict[int, RunResult]:
        """The usable runs of an arm by seed."""
        return {run.seed: run for run in self.runs if run.arm == arm}


def read_sweep(folder: Path, *, seeds: range | None = None) -> Sweep:
    """Reads the runs of all arms.

    Args:
        folder: of the sweep, with runs as <arm>/seed_<n>.
        seeds: runs with other seeds are ignored; None takes all.

    Raises:
        ValueError: there is no such folder, it holds no arm, or not one run that can be used.
    """
    folder = Path(folder)
    places = run_folders(folder)
    wanted = [place for place in places if seeds is None or seed_of(place) in seeds]
    runs, notes = read_results(wanted, read=read_kept_plan(folder).read)
    if not runs:
        raise ValueError(
            f"sweep must hold a finished run, got {str(folder)!r} with {len(wanted)} to consider; {'; '.join(notes[:3])}".rstrip("; ")
        )
    return sweep_of(folder, runs, notes, arms=[place.parent.name for place in places], seeds=seeds)


def sweep_of(folder: Path, runs: Sequence[RunResult], notes: Sequence[str], *, arms: Iterable[str], seeds: range | None) -> Sweep:
    """Runs as a sweep: with the areas under their curves, and the plan that lies in the folder."""
    runs, ends, short = with_areas(runs)
    plan = read_kept_plan(folder)
    notes = [*plan.notes, *notes, *short, *judged_by_fewer(runs)]
    return Sweep(
        folder=folder,
        arms=sorted(set(arms)),
        runs=runs,
        notes=notes,
        auc_ends=ends,
        plan=plan,
        only_seeds=None if seeds is None else tuple(seeds),
    )


def read_results(places: Sequence[Path], *, read: Iterable[str] = ()) -> tuple[list[RunResult], list[str]]:
    """The runs that can be used, and of each other one why it cannot.

    Args:
        read: numbers of their summaries that are wanted beside the endpoints.
    """
    runs, notes = [], list[str]()
    for place in progress(places, total=len(places), what="Reading runs"):
        try:
            runs.append(read_result(place, read=read))
        except (ValueError, OSError) as error:
            arm, seed = place.parent.name, seed_of(place)
            notes.append(Note(f"{arm}/{place.name} is left out: {error}", arm=arm, seeds=(seed,), kind=NoteKind.LEFT_OUT))
    return runs, notes


def judged_by_fewer(runs: Iterable[RunResult]) -> list[str]:
    """Which runs were scored on fewer dialogues than others that were judged alike: some broke, and others' users count in their place."""
    counted = [run for run in runs if run.num_judged is not None]
    notes = list[str]()
    for run in counted:
        most = max(other.num_judged or 0 for other in counted if not why_not(run, other))
        if run.num_judged != most:
            fewer = f"{run.name} is scored on {run.num_judged} held-out dialogues at the end, others on {most}; those lacking broke."
            notes.append(Note(fewer, arm=run.arm, seeds=(run.seed,)))
    return notes


def run_folders(folder: Path) -> list[Path]:
    """The folders `<arm>/seed_<n>`, by arm and seed.

    Raises:
        ValueError: there are none; with the sweeps that lie beneath, if there are any.
    """
    if not folder.is_dir():
        raise ValueError(f"sweep must be a folder, got {str(folder)!r}; there is no such folder")
    found = [path for path in folder.glob("*/seed_*") if path.is_dir() and re.fullmatch(r"seed_(0|[1-9][0-9]*)", path.name)]
    if not found:
        sweeps = sorted({path.parent.parent for path in folder.glob("*/*/seed_*") if path.is_dir()})
        hint = f"; sweeps beneath it: {', '.join(map(str, sweeps[:5]))}" if sweeps else ""
        raise ValueError(f"sweep must hold runs as <arm>/seed_<n>, got {str(folder)!r}, which holds none{hint}")
    return sorted(found, key=lambda path: (path.parent.name, seed_of(path)))


def seed_of(place: Path) -> int:
    """The seed that a run's folder names."""
    return int(place.name.removeprefix("seed_"))


def read_result(place: Path, *, read: Iterable[str] = ()) -> RunResult:
    """Reads one run.

    Raises:
        ValueError: it is torn, unfinished, not what its folder says, or no replay of the run that it names.
    """
    run = read_run(place)
    if run.summary is None:
        raise ValueError("it has not finished (no summary.json); resume it to have it counted")
    if run.summary.get("seed") != seed_of(place):
        raise ValueError(f"its summary says seed {run.summary.get('seed')!r}, its folder {seed_of(place)}")
    if reason := why_no_copy(run):
        raise ValueError(reason)
    settings = dict(leaves(run.config))
    require_budgets(settings)
    if said := lacks_provenance(run):
        raise ValueError(said)
    grades = read_grades(run)
    curve, cells = held_out(run, grades)
    return RunResult(
        arm=place.parent.name,
        seed=seed_of(place),
        world=recorded_world(run.summary, run.config),
        settings=settings,
        commits=tuple(run.commits),
        initial_policy=str(run.provenance.get("initial_policy") or ""),
        scalars=scalars_of(run.summary, read=read) | {FORGOTTEN: forgotten(grades)},
        alarms=[str(alarm.get("name")) for alarm in setting(run.summary, "collapse.alarms", [])],
        curve=curve,
        cells=cells,
        num_judged=setting(run.summary, "heldout.n_dialogues"),
        expert=number(setting(run.summary, "reference.L6.score")),
    )


def require_budgets(settings: Mapping[str, Any]) -> None:
    """Raises unless settings tell what a run might spend.

    Raises:
        ValueError: a budget is no number, or none that a run can have.
    """
    for name, least in zip(BUDGETS, (1, 0), strict=True):
        # Limits on steps are newer than some runs.
        value = settings.get(name, least if name == "budget.steps" else None)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must stand in its config.yaml, got {value!r}")
        if value < least:
            raise ValueError(f"{name} in its config.yaml must be at least {least}, got {value!r}")


def scalars_of(summary: Mapping[str, Any], *, read: Iterable[str]) -> dict[str, float | None]:
    """The endpoints, and other numbers, that stand in a run's summary or follow from two that do."""
    found = {name: number(setting(summary, name)) for name in (*ENDPOINTS, *read) if name not in COMPUTED}
    start, end = found["start.score"], found["heldout.score"]
    return found | {GAIN: None if start is None or end is None else end - start}


def number(value: Any) -> float | None:
    """The value if it is a finite number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def held_out(run: Run, grades: Sequence[Grade]) -> tuple[Curve | None, dict[Cell, float]]:
    """A run's curve and its cells at the end; ERROR dialogues count in neither.

    Raises:
        ValueError: the looks are no curve, or looks or dialogues are missing that the summary counted.
    """
    full: dict[int, dict[Cell, list[float]]] = {}
    for grade in grades:
        if grade.grid == "full":
            full.setdefault(grade.look, {}).setdefault((grade.family, grade.strictness), []).append(grade.emotion)
    seen = looks(grades)
    if seen and seen[0].policy_tokens != 0:
        raise ValueError(f"evaluation.jsonl must begin before training, got a first look at {seen[0].policy_tokens} policy tokens")
    curve = curve_of(seen) if seen else None
    if curve:
        check_curve(curve, "its learning curve")
    if said := lacks_looks(run.summary, seen):
        raise ValueError(said)
    last = full[max(full)] if len(full) > 1 else {}
    if said := lacks_dialogues(run.summary, sum(map(len, last.values()))):
        raise ValueError(said)
    return curve, {cell: statistics.fmean(emotions) for cell, emotions in sorted(last.items())}


def with_areas(runs: Sequence[RunResult]) -> tuple[list[RunResult], dict[int, float], list[str]]:
    """The runs with `heldout.auc`, to where the areas of each budget reach, and what is to be said about short curves.

    Areas reach to the budget, or to the end of the shortest curve where none reaches that far (runs that end by steps). What lies beyond
    is cut off; a finished run that ended earlier keeps its last score to the end, because dropping it would favour arms that collapse.
    """
    ends: dict[int, float] = {}
    areas: dict[str, float] = {}
    unseen = "has no evaluations: the area under its curve is unknown."
    notes: list[str] = [Note(f"{run.name} {unseen}", arm=run.arm, seeds=(run.seed,)) for run in runs if run.curve is None]
    for budget in sorted({run.budget for run in runs}):
        drawn = [(run, run.curve) for run in runs if run.budget == budget and run.curve is not None]
        lasts = [float(curve.tokens[-1]) for _, curve in drawn]
        # A curve of one look has no width to cut the others to.
        end = float(budget) if max(lasts, default=0.0) >= budget else min((last for last in lasts if last > 0.0), default=0.0)
        if end <= 0.0:
            continue
        ends[budget] = end
        if end < budget:
            notes.append(
                f"No run spent the {budget:,} policy tokens that were allowed: areas are over the first {end:,.0f}, where the shortest "
                f"curve ends; the longest reaches {max(lasts):,.0f}."
            )
        tokens_T, curves_RT = common_curves([curve for _, curve in drawn], end=end)
        found = area_under_curves(tokens_T, hold_last(curves_RT))
        areas |= {run.name: float(area) for (run, _), area in zip(drawn, found, strict=True)}
        short = [(run.name, last) for (run, _), last in zip(drawn, lasts, strict=True) if last < SHORT * end]
        if short:
            ended = ", ".join(f"{name} at {last:,.0f}" for name, last in short)
            whose = "its last score is" if len(short) == 1 else "their last scores are"
            notes.append(f"Before {end:,.0f} policy tokens ended {ended}: {whose} held to the end.")
    return [replace(run, scalars={**run.scalars, AUC: areas.get(run.name)}) for run in runs], ends, notes


def why_not(a: RunResult, b: RunResult) -> str:
    """Why two runs must not be compared or averaged, as what both `had`, `were` or `ran in`; empty where they may be.

    A setting that only one of them knows is no difference: it did not exist when the other began, and stood at its default.
    """
    if a.world != b.world:
        return f"ran in different worlds ({a.world} and {b.world})"
    for name in BUDGETS:
        if allowed_of(a, name) != allowed_of(b, name):
            return f"had unequal budgets ({name}: {allowed_of(a, name)} and {allowed_of(b, name)})"
    for name in sorted(differing(a.settings, b.settings, known=True, of="evaluation.")):
        return f"were judged differently ({name}: {a.settings.get(name)} and {b.settings.get(name)})"
    return ""


def allowed_of(run: RunResult, budget: str) -> int:
    """A budget of a run, one of `BUDGETS`; 0 where it has none."""
    return run.settings.get(budget) or 0


def why_not_paired(a: RunResult, b: RunResult) -> str:
    """As `why_not`, why two runs of one seed must not be set against each other; empty where they may be.

    Arms whose policies differ on purpose begin with different ones; with the same settings, two builds of one prior are no fair start.
    """
    if reason := why_not(a, b):
        return reason
    if a.initial_policy and b.initial_policy and a.initial_policy != b.initial_policy and not other_start(a, b):
        return f"began with different policies ({a.initial_policy} and {b.initial_policy})"
    return ""


def other_start(a: RunResult, b: RunResult) -> str:
    """The setting by which two runs begin with other weights on purpose; empty where there is none."""
    return next(iter(differing(a.settings, b.settings, known=True, of=OF_THE_START)), "")


def why_not_averaged(a: RunResult, b: RunResult) -> str:
    """Why two runs of one arm must not be averaged, with their names; empty where they may be."""
    if reason := why_not(a, b):
        return f"{a.name} and {b.name} {reason}"
    for name in sorted(differing(a.settings, b.settings, known=True)):
        if not name.startswith(NO_MATTER):
            return f"{a.name} and {b.name} were run with different settings ({name}: {a.settings[name]} and {b.settings[name]})"
    return ""


def groups_alike(runs: Iterable[RunResult], *, apart: Callable[[RunResult, RunResult], str] = why_not_averaged) -> list[list[RunResult]]:
    """The runs in groups of which each belongs together, the largest first; of equally large ones the one that came first.

    Args:
        apart: why two runs do not belong together; as it is, for runs of one arm.
    """
    groups: list[list[RunResult]] = []
    for run in runs:
        home = next((group for group in groups if not apart(group[0], run)), None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    return sorted(groups, key=len, reverse=True)


def differing(a: Mapping[str, Any], b: Mapping[str, Any], *, known: bool = False, of: str | tuple[str, ...] = "") -> list[str]:
    """Dotted names of the settings in which two runs differ, a run's own name and seed aside.

    Args:
        known: only of those that both runs know.
        of: beginnings of the names that are asked for; others are not compared, which takes the time.
    """
    names = [name for name in dict.fromkeys([*a, *b]) if name.startswith(of) and name not in BY_ITSELF]
    names = [name for name in names if not known or (name in a and name in b)]
    return [name for name in names if json.dumps(a.get(name), default=str) != json.dumps(b.get(name), default=str)]


def unlike_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """As `differing`, but for settings that only one run knows outside of groups that have kinds: those did not exist yet."""
    return [name for name in differing(a, b) if (name in a and name in b) or name.startswith(WITH_KINDS)]


def measured(runs: Iterable[RunResult], endpoint: str) -> np.ndarray:
    """float[R], the endpoint of the runs that measured it."""
    return np.array([value for run in runs if (value := run.scalars.get(endpoint)) is not None], dtype=float)


def common_cells(runs: Iterable[RunResult]) -> list[Cell]:
    """The cells that all of the runs were judged on, sorted."""
    held = [set(run.cells) for run in runs]
    return sorted(set.intersection(*held)) if held else []
