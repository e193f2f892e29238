"""The runs of a sweep as one frame, from run folders `<arm>/seed_<n>/` or from a study's tables.

`results.csv` has a row a run and `curves.csv` a row an evaluation of the small held-out grid, so that a verdict can be recomputed without
the run folders. Next to them are `settings.json`, from which each row states its own differences, and the sweep's `plan.json`.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.endpoints import (
    AUC,
    COMPUTED,
    ENDPOINTS,
    FORGOTTEN,
    GAIN,
    Curve,
    Grade,
    Look,
    area_to,
    forgotten,
    lacks_dialogues,
    lacks_looks,
    looks,
    read_grades,
)
from analysis.plan import PLAN, KeptPlan, Planned, read_kept_plan, read_planned
from analysis.runs import OF_A_SITTING, Run, read_run, why_no_copy
from simulator.files import progress, write_whole
from simulator.settings import leaves, setting


class NoteKind(Enum):
    """The subject of a remark about an arm."""

    REMARK = auto()
    """Its runs, which count all the same."""
    LEFT_OUT = auto()
    """Runs of these seeds that cannot be used."""
    NO_RUN = auto()
    """It has none that can."""
    LACKS_SEEDS = auto()
    """It has none of these seeds, so nothing is paired on them."""


class Note(str):
    """A sentence with its subject, so that a page which says it already need not parse it."""

    __slots__ = ("arm", "kind", "seeds")

    kind: NoteKind
    arm: str
    seeds: tuple[int, ...]

    def __new__(cls, text: str, *, arm: str, seeds: tuple[int, ...] = (), kind: NoteKind = NoteKind.REMARK) -> Note:
        note = super().__new__(cls, text)
        note.kind, note.arm, note.seeds = kind, arm, seeds
        return note


BY_ITSELF = ("name", "seed", "resume", "runs", "experiment")
"""Settings in which two runs of a comparison may differ."""
NO_MATTER = (*OF_A_SITTING, "teacher.trace", "simulator.profiles", "simulator.heldout_profiles")
"""Beginnings of further settings in which runs of one arm may differ: where they ran, what was saved, and whom they copied."""
BUDGETS = ("budget.policy_tokens", "budget.steps")
"""Settings that end a run; 0 steps are no limit."""
WITH_KINDS = ("teacher.", "algorithm.", "simulator.")
"""Groups whose settings depend on a kind."""
OF_THE_START = ("policy.model", "policy.prior.", "policy.thinking")
"""Beginnings of the settings that decide which weights a run begins with."""
SHORT = 0.98
"""A run whose last evaluation lies before this share of the common range is named, because its last score is held to the end."""
METRICS_AT_LOOKS = {"strictness": "curriculum/strictness", "entropy": "actor/entropy", "reward_density": "curriculum/reward_density"}
"""Columns of `curves.csv` that are metrics of the step at which an evaluation was made."""

Cell = tuple[str, float]
"""Family and strictness."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One training run in a comparison."""

    arm: str
    seed: int
    world: str
    """Its name and version, `world-1`; of runs older than versions that are not mapped to one, a hash of source files."""
    settings: dict[str, Any]
    """By dotted name."""
    commits: tuple[str, ...]
    """Commits that it ran on, 12 characters, with `+` for uncommitted changes; empty where that was not recorded."""
    initial_policy: str
    """A digest of the weights it began with; empty where that was not recorded."""
    scalars: dict[str, float | None]
    """By endpoint; None for those that the run did not measure."""
    alarms_at: tuple[str, ...] = ()
    """Names and steps, `entropy_low@31`, in the order they went off."""
    looks: tuple[dict[str, Any], ...] = ()
    """A row of `curves.csv` for each evaluation: step, policy_tokens, score (mean final emotion, 0-100, on the small grid), and metrics."""
    cells: dict[Cell, float] = field(default_factory=dict)
    """Mean final emotion, 0-100, at the last full evaluation; empty in tables."""
    num_judged: int | None = None
    """Dialogues in its score at the end; None where the run did not count them."""
    expert: float | None = None
    """Score of the scripted expert L6 with the same users, 0-100; None where it was not measured."""
    num_steps: int | None = None

    @property
    def name(self) -> str:
        """Arm and seed."""
        return f"{self.arm}/seed_{self.seed}"

    @property
    def budget(self) -> int:
        """Policy tokens that it was allowed."""
        return int(self.settings["budget.policy_tokens"])

    @property
    def alarms(self) -> list[str]:
        """Names, in the order they went off."""
        return [alarm.partition("@")[0] for alarm in self.alarms_at]

    @property
    def curve(self) -> Curve | None:
        """Its learning curve; None without evaluations."""
        if not self.looks:
            return None
        return Curve([look["policy_tokens"] for look in self.looks], [look["score"] for look in self.looks])


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The usable runs of a folder, and notes on the others."""

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

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each run, by (arm, seed): facts, and as float num_judged, expert and each endpoint under its dotted name."""
        facts = ("arm", "seed", "world", "commits", "initial_policy", "budget", "alarms")
        numbers = list(dict.fromkeys([*ENDPOINTS, *self.plan.read, *(name for run in self.runs for name in run.scalars)]))
        rows = [
            {name: getattr(run, name) for name in facts} | {"num_judged": run.num_judged, "expert": run.expert, **run.scalars}
            for run in self.runs
        ]
        frame = pd.DataFrame(rows, columns=[*facts, "num_judged", "expert", *numbers])
        return frame.astype(dict.fromkeys(["num_judged", "expert", *numbers], float)).set_index(["arm", "seed"])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A row for each evaluation of each run: arm, seed, and as float step, policy_tokens, score and `METRICS_AT_LOOKS`."""
        columns = [*Look._fields, *METRICS_AT_LOOKS]
        rows = [{"arm": run.arm, "seed": run.seed, **look} for run in self.runs for look in run.looks]
        return pd.DataFrame(rows, columns=["arm", "seed", *columns]).astype(dict.fromkeys(columns, float))


def read_sweep(path: Path, *, seeds: range | None = None) -> Sweep:
    """A sweep from its folder, or from a study's `results.csv`, next to which its plan lies.

    Args:
        path: of the folder with runs as <arm>/seed_<n>, or of the table.
        seeds: runs with other seeds are ignored; None takes all.

    Raises:
        ValueError: there is no such folder or file, or no run in it that can be used.
    """
    path = Path(path)
    is_table = path.suffix == ".csv"
    folder, notes = path.parent if is_table else path, list[str]()
    plan = read_kept_plan(folder)
    if is_table:
        everything = read_table(path)
        arms = [run.arm for run in everything]
        there, runs = {run.seed for run in everything}, [run for run in everything if seeds is None or run.seed in seeds]
    else:
        places = run_folders(folder)
        arms, there = [place.parent.name for place in places], {seed_of(place) for place in places}
        runs, notes = read_results([place for place in places if seeds is None or seed_of(place) in seeds], read=plan.read)
    if seeds is not None and not there & {*seeds}:
        asked = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
        raise ValueError(f"--seeds must hold a seed of the sweep ({', '.join(map(str, sorted(there)))}), got {asked}")
    if not runs:
        raise ValueError(f"sweep must hold a finished run, got {str(path)!r}; {'; '.join(notes[:3])}".rstrip("; "))
    runs, ends, short = with_areas(runs)
    return Sweep(
        folder=folder,
        arms=sorted(set(arms)),
        runs=runs,
        notes=[*plan.notes, *notes, *short, *judged_by_fewer(runs)],
        auc_ends=ends,
        plan=plan,
        only_seeds=None if seeds is None else tuple(seeds),
    )


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


def read_results(places: Sequence[Path], *, read: Iterable[str] = ()) -> tuple[list[RunResult], list[str]]:
    """The runs that can be used, and of each other one why it cannot.

    Args:
        read: further numbers of their summaries.
    """
    runs, notes = [], list[str]()
    for place in progress(places, total=len(places), what="Reading runs"):
        try:
            runs.append(read_result(place, read=read))
        except (ValueError, KeyError, TypeError, OSError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            arm, seed = place.parent.name, seed_of(place)
            notes.append(Note(f"{arm}/{place.name} is left out: {why}", arm=arm, seeds=(seed,), kind=NoteKind.LEFT_OUT))
    return runs, notes


def read_result(place: Path, *, read: Iterable[str] = ()) -> RunResult:
    """Reads one run.

    Raises:
        ValueError: it is torn, unfinished, of another seed than its folder, or no replay of the run that it names.
    """
    run = read_run(place)
    summary = run.summary
    if summary is None:
        raise ValueError("it has not finished (no summary.json); resume it to have it counted")
    if summary.get("seed") != seed_of(place):
        raise ValueError(f"its summary says seed {summary.get('seed')!r}, its folder {seed_of(place)}")
    if reason := why_no_copy(run):
        raise ValueError(reason)
    settings = dict(leaves(run.config))
    grades = read_grades(run)
    scalars = {name: number(setting(summary, name)) for name in (*ENDPOINTS, *read) if name not in COMPUTED}
    at_steps = {name: dict(zip(*run.series(key), strict=True)) for name, key in METRICS_AT_LOOKS.items()}
    seen, cells = held_out(run, grades)
    return RunResult(
        arm=place.parent.name,
        seed=seed_of(place),
        world=run.world,
        settings={**settings, "budget.policy_tokens": int(settings["budget.policy_tokens"])},
        commits=tuple(commit[:12] + "+" * commit.endswith("+") for commit in run.commits),
        initial_policy=str(run.provenance.get("initial_policy") or ""),
        scalars={**scalars, GAIN: gain_of(scalars), FORGOTTEN: forgotten(grades)},
        alarms_at=tuple(f"{alarm['name']}@{alarm['step']}" for alarm in setting(summary, "collapse.alarms", [])),
        looks=tuple(look._asdict() | {name: at_steps[name].get(look.step) for name in METRICS_AT_LOOKS} for look in seen),
        cells=cells,
        num_judged=setting(summary, "heldout.n_dialogues"),
        expert=number(setting(summary, "reference.L6.score")),
        num_steps=setting(summary, "steps"),
    )


def number(value: Any) -> float | None:
    """The value if it is a finite number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def gain_of(scalars: Mapping[str, float | None]) -> float | None:
    """The score at the end less the score before training; None where one is not known."""
    start, end = scalars["start.score"], scalars["heldout.score"]
    return None if start is None or end is None else end - start


def held_out(run: Run, grades: Sequence[Grade]) -> tuple[list[Look], dict[Cell, float]]:
    """A run's evaluations on the small grid and its cells at the end; ERROR dialogues count in neither.

    Raises:
        ValueError: there is none before training, or some are missing that the summary counted.
    """
    seen = looks(grades)
    if seen and seen[0].policy_tokens != 0:
        raise ValueError(f"evaluation.jsonl must begin before training, got a first look at {seen[0].policy_tokens} policy tokens")
    full: dict[int, dict[Cell, list[float]]] = {}
    for grade in grades:
        if grade.grid == "full":
            full.setdefault(grade.look, {}).setdefault((grade.family, grade.strictness), []).append(grade.emotion)
    # The full grid before training is not the end.
    last = full[max(full)] if len(full) > 1 else {}
    if complaint := lacks_looks(run.summary, seen) or lacks_dialogues(run.summary, sum(map(len, last.values()))):
        raise ValueError(complaint)
    return seen, {cell: statistics.fmean(emotions) for cell, emotions in sorted(last.items())}


def with_areas(runs: Sequence[RunResult]) -> tuple[list[RunResult], dict[int, float], list[str]]:
    """The runs with `heldout.auc`, where the areas of each budget end, and notes on short curves.

    Areas reach to the budget, or to the end of the shortest curve where none reaches that far (runs that end by steps). What lies beyond
    is cut off; a finished run that ended earlier keeps its last score to the end, because dropping it would favour arms that collapse.
    """
    ends: dict[int, float] = {}
    unseen = "has no evaluations: the area under its curve is unknown."
    notes: list[str] = [Note(f"{run.name} {unseen}", arm=run.arm, seeds=(run.seed,)) for run in runs if run.curve is None]
    for budget in sorted({run.budget for run in runs}):
        lasts = {run.name: float(run.curve.tokens[-1]) for run in runs if run.budget == budget and run.curve is not None}
        # A curve of one evaluation has no width to cut the others to.
        end = float(budget) if max(lasts.values(), default=0.0) >= budget else min(filter(None, lasts.values()), default=0.0)
        if not end:
            continue
        ends[budget] = end
        if end < budget:
            notes.append(
                f"No run spent the {budget:,} policy tokens that were allowed: areas are over the first {end:,.0f}, where the shortest "
                f"curve ends; the longest reaches {max(lasts.values()):,.0f}."
            )
        if short := [f"{name} at {last:,.0f}" for name, last in lasts.items() if last < SHORT * end]:
            whose = "its last score is" if len(short) == 1 else "their last scores are"
            notes.append(f"Before {end:,.0f} policy tokens ended {', '.join(short)}: {whose} held to the end.")
    areas = [area_to(run.curve, ends[run.budget]) if run.curve is not None and run.budget in ends else None for run in runs]
    return [replace(run, scalars={**run.scalars, AUC: area}) for run, area in zip(runs, areas, strict=True)], ends, notes


def judged_by_fewer(runs: Iterable[RunResult]) -> list[str]:
    """The runs that were scored on fewer dialogues than others with the same evaluation, because some broke."""
    counted = [run for run in runs if run.num_judged is not None]
    notes = list[str]()
    for run in counted:
        most = max(other.num_judged or 0 for other in counted if not why_not(run, other))
        if run.num_judged != most:
            fewer = f"{run.name} is scored on {run.num_judged} held-out dialogues at the end, others on {most}; those lacking broke."
            notes.append(Note(fewer, arm=run.arm, seeds=(run.seed,)))
    return notes


def why_not(a: RunResult, b: RunResult) -> str:
    """Why two runs must not be compared or averaged, as a predicate of both (`ran in different worlds`); empty where they may be.

    A setting that only one of them knows is no difference: it did not exist when the other began, and had its default.
    """
    if a.world != b.world:
        return f"ran in different worlds ({a.world} and {b.world})"
    for name in BUDGETS:
        if allowed_of(a, name) != allowed_of(b, name):
            return f"had unequal budgets ({name}: {allowed_of(a, name)} and {allowed_of(b, name)})"
    for name in sorted(differing(a.settings, b.settings, known=True, of="evaluation.")):
        return f"were judged differently ({name}: {a.settings[name]} and {b.settings[name]})"
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


def comparable_groups(
    runs: Iterable[RunResult], *, apart: Callable[[RunResult, RunResult], str] = why_not_averaged
) -> list[list[RunResult]]:
    """The runs in groups that belong together, the largest first; of equally large ones the one that came first.

    Args:
        apart: why two runs do not belong together; the default is for runs of one arm.
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
        of: beginnings of the names that are compared.
    """
    names = [name for name in dict.fromkeys([*a, *b]) if name.startswith(of) and name not in BY_ITSELF]
    return [name for name in names if a.get(name) != b.get(name) and not (known and (name not in a or name not in b))]


def common_cells(runs: Iterable[RunResult]) -> list[Cell]:
    """The cells that all of the runs were judged on, sorted."""
    held = [set(run.cells) for run in runs]
    return sorted(set.intersection(*held)) if held else []


RESULTS, CURVES, SETTINGS = "results.csv", "curves.csv", "settings.json"
KEY = ("arm", "seed")
FACTS = ("world", "commits", "initial_policy", "budget", "steps", "num_judged", "expert", "collapsed", "alarms")
"""Columns about a run, without its endpoints. `collapsed` is the step at which a study's label places the collapse, `no`, or empty."""
MEASURED = tuple(name for name in ENDPOINTS if name not in (AUC, GAIN))
"""Endpoints in a row; the gain and the area under the curve follow from the rest."""
ABSENT = "absent"
"""Key of a row's settings: names of `settings.json` that this run does not know."""


def read_csv(path: Path) -> pd.DataFrame:
    """A table as texts, empty where nothing is; without rows where there is no file."""
    return pd.read_csv(path, dtype=str, keep_default_na=False) if path.is_file() else pd.DataFrame()


def number_in(text: str | None) -> float | None:
    """A cell as a number; None where it is empty or there is no such column."""
    return float(text) if text else None


def read_table(path: Path) -> list[RunResult]:
    """The runs of a `results.csv`, by arm and seed.

    Raises:
        ValueError: a file is missing, a column is missing, or a cell holds no number.
    """
    for needed in (path, path.parent / CURVES, path.parent / SETTINGS):
        if not needed.is_file():
            raise ValueError(f"{needed} must be there to compare {path}")
    common = json.loads((path.parent / SETTINGS).read_text(encoding="utf-8"))
    looks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in read_csv(path.parent / CURVES).to_dict("records"):
        looks.setdefault((row["arm"], row["seed"]), []).append({str(name): number_in(row[name]) for name in row if name not in KEY})
    runs = []
    for num, row in enumerate(read_csv(path).to_dict("records"), start=2):
        try:
            settings = json.loads(row.get("settings") or "{}")
            absent = set(settings.pop(ABSENT, ()))
            scalars = {str(name): number_in(row.get(name)) for name in (*MEASURED, *row) if name not in (*KEY, *FACTS, "settings")}
            judged, steps = number_in(row.get("num_judged")), number_in(row.get("steps"))
            runs.append(
                RunResult(
                    arm=row["arm"],
                    seed=int(row["seed"]),
                    world=row["world"],
                    settings={name: value for name, value in common.items() if name not in absent} | settings,
                    commits=tuple(row.get("commits", "").split()),
                    initial_policy=row.get("initial_policy", ""),
                    scalars=scalars | {GAIN: gain_of(scalars)},
                    alarms_at=tuple(row.get("alarms", "").split()),
                    looks=tuple(looks.get((row["arm"], row["seed"]), ())),
                    num_judged=None if judged is None else int(judged),
                    expert=number_in(row.get("expert")),
                    num_steps=None if steps is None else int(steps),
                )
            )
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path} must hold a run in each row, got line {num} with a bad {error}") from error
    return sorted(runs, key=lambda run: (run.arm, run.seed))


def export(folder: Path, out: Path) -> str:
    """Adds the finished runs of a sweep to the tables of a study, whose rows stay as they are; returns a message.

    Args:
        folder: the sweep's folder, with runs as <arm>/seed_<n>.
        out: the study's folder, made where there is none.

    Raises:
        ValueError: no run is finished, or another plan or another run is there.
    """
    sweep = read_sweep(folder)
    runs = sweep.runs
    planned: Planned | None = sweep.plan.planned
    before: Planned | None = read_planned(out)
    if planned and before and (planned.contrasts, planned.primary) != (before.contrasts, before.primary):
        raise ValueError(f"{out / PLAN} must be the plan of {folder}, got another; export to another folder")
    out.mkdir(parents=True, exist_ok=True)
    own = [{name: value for name, value in run.settings.items() if name not in BY_ITSELF} for run in runs]
    if not (out / SETTINGS).is_file():
        known = [name for name in own[0] if all(name in settings for settings in own)]
        most = {name: Counter(as_json(settings[name]) for settings in own).most_common(1)[0][0] for name in known}
        common = {name: json.loads(value) for name, value in most.items()}
        write_whole(out / SETTINGS, json.dumps(common, indent=0, ensure_ascii=False) + "\n")
    common = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
    results, curves = read_csv(out / RESULTS), read_csv(out / CURVES)
    there = {(row["arm"], row["seed"]): row for row in results.to_dict("records")}
    measured = list(dict.fromkeys((*MEASURED, *(name for name in sweep.plan.read if name not in (AUC, GAIN)))))
    new_rows, new_looks = [], []
    for run, settings in zip(runs, own, strict=True):
        row = row_of(run, settings, common, measured)
        old = there.get((run.arm, str(run.seed)))
        if old is None:
            new_rows.append(row)
            new_looks += [
                {"arm": run.arm, "seed": str(run.seed), **{name: as_cell(value) for name, value in look.items()}} for look in run.looks
            ]
        elif other := [name for name in measured if old.get(name, "") != row[name]]:
            name = other[0]
            raise ValueError(f"{out / RESULTS} holds another {run.name}: its {name} is {old.get(name, '')}, here {row[name]}")
    of_study = [str(name) for name in results if name not in (*KEY, *FACTS, *measured, "settings")]
    write_csv(out / RESULTS, results, new_rows, columns=(*KEY, *FACTS, *measured, *of_study, "settings"))
    write_csv(out / CURVES, curves, new_looks, columns=(*KEY, *Look._fields, *METRICS_AT_LOOKS))
    if planned and not before:
        write_whole(out / PLAN, (folder / PLAN).read_bytes())
    return "\n".join([*sweep.notes, f"{len(new_rows)} new of {len(runs)} finished runs are in {out / RESULTS}"])


def row_of(run: RunResult, settings: Mapping[str, Any], common: Mapping[str, Any], measured: Iterable[str]) -> dict[str, str]:
    """A run's row of `results.csv`.

    Args:
        settings: of the run, but for those that name it.
        common: the settings that the row states its differences from.
        measured: endpoints in the row.
    """
    differing: dict[str, Any] = {name: value for name, value in settings.items() if name not in common or common[name] != value}
    if absent := [name for name in common if name not in settings]:
        differing[ABSENT] = absent
    facts = {
        "arm": run.arm,
        "seed": run.seed,
        "world": run.world,
        "commits": " ".join(run.commits),
        "initial_policy": run.initial_policy,
        "budget": run.budget,
        "steps": run.num_steps,
        "num_judged": run.num_judged,
        "expert": run.expert,
        "alarms": " ".join(run.alarms_at),
        "settings": as_json(differing) if differing else "",
    }
    return {name: as_cell(value) for name, value in (facts | {name: run.scalars.get(name) for name in measured}).items()}


def as_json(value: Any) -> str:
    """A setting's value as text that compares equal where the value does."""
    return json.dumps(value, ensure_ascii=False, default=str)


def as_cell(value: Any) -> str:
    """A value as text from which the same value is read; empty for None."""
    return "" if value is None else value if isinstance(value, str) else repr(value)


def write_csv(path: Path, before: pd.DataFrame, new: Sequence[Mapping[str, str]], *, columns: Sequence[str]) -> None:
    """Writes a table with new rows, whole or not at all; a column that is empty in all rows is left out."""
    table = pd.DataFrame([*before.to_dict("records"), *new], columns=columns, dtype=object).fillna("")
    kept = [name for name in columns if name in KEY or (table[name] != "").any()]
    write_whole(path, table[kept].to_csv(index=False, lineterminator="\n"))
