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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.endpoints import (
    AUC,
    ENDPOINTS,
    FORGOTTEN,
    GAIN,
    PLAN,
    Curve,
    Look,
    Planned,
    area_of,
    endpoint,
    forgotten,
    grades_of,
    looks,
    read_plan,
)
from analysis.runs import OF_A_MACHINE, read_run
from simulator.files import progress, write_whole
from simulator.settings import leaves, setting

BY_ITSELF = ("name", "seed", "resume", "runs", "experiment")
"""Settings in which two runs of a comparison may differ."""
NO_MATTER = (*OF_A_MACHINE, "teacher.trace", "simulator.profiles", "simulator.heldout_profiles")
"""Beginnings of further settings in which runs of one arm may differ: where they ran, what was saved, and whom they copied."""
METRICS_AT_LOOKS = {"strictness": "curriculum/strictness", "entropy": "actor/entropy", "reward_density": "curriculum/reward_density"}
"""Columns of `curves.csv` that are metrics of the step at which an evaluation was made."""


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
    cells: dict[tuple[str, float], float] = field(default_factory=dict)
    """Mean final emotion, 0-100, at the last full evaluation, by family and strictness; empty in tables."""
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
    def budgets(self) -> tuple[int, ...]:
        """Policy tokens and steps that it was allowed; 0 for no limit."""
        return tuple(int(self.settings.get(f"budget.{name}") or 0) for name in ("policy_tokens", "steps"))

    @property
    def alarms(self) -> list[str]:
        """Names, in the order they went off."""
        return [alarm.partition("@")[0] for alarm in self.alarms_at]

    @property
    def curve(self) -> Curve | None:
        """Its learning curve; None without evaluations."""
        return Curve([look["policy_tokens"] for look in self.looks], [look["score"] for look in self.looks]) if self.looks else None

    def differs_in(self, other: RunResult, *, known: bool = True, of: str | tuple[str, ...] = "") -> list[str]:
        """Dotted names of the settings in which two runs differ, a run's own name and seed aside.

        Args:
            known: only of those that both runs know: another did not exist when one of them began, and had its default.
            of: beginnings of the names that are compared.
        """
        a, b = self.settings, other.settings
        names = [name for name in dict.fromkeys([*a, *b]) if name.startswith(of) and name not in BY_ITSELF]
        return [name for name in names if a.get(name) != b.get(name) and not (known and (name not in a or name not in b))]

    def why_not(self, other: RunResult) -> str:
        """Why two runs must not be compared or averaged, as a predicate of both (`ran in different worlds`); empty where they may be."""
        if self.world != other.world:
            return f"ran in different worlds ({self.world} and {other.world})"
        for name, ours, theirs in zip(("policy_tokens", "steps"), self.budgets, other.budgets, strict=True):
            if ours != theirs:
                return f"had unequal budgets (budget.{name}: {ours} and {theirs})"
        for name in sorted(self.differs_in(other, of="evaluation.")):
            return f"were judged differently ({name}: {self.settings[name]} and {other.settings[name]})"
        return ""

    def begins_otherwise(self, other: RunResult) -> str:
        """A setting by which two runs begin with other weights on purpose; empty where there is none."""
        return next(iter(self.differs_in(other, of=("policy.model", "policy.prior.", "policy.thinking"))), "")

    def why_not_paired(self, other: RunResult) -> str:
        """As `why_not`, why two runs of one seed must not be set against each other; empty where they may be.

        Arms whose policies differ on purpose begin with different ones; with the same settings, two builds of one prior are no fair start.
        """
        policies = (self.initial_policy, other.initial_policy)
        if not (reason := self.why_not(other)) and all(policies) and len({*policies}) > 1 and not self.begins_otherwise(other):
            return f"began with different policies ({policies[0]} and {policies[1]})"
        return reason

    def why_not_averaged(self, other: RunResult) -> str:
        """Why two runs of one arm must not be averaged, with their names; empty where they may be."""
        if reason := self.why_not(other):
            return f"{self.name} and {other.name} {reason}"
        for name in sorted(self.differs_in(other)):
            if not name.startswith(NO_MATTER):
                values = f"{self.settings[name]} and {other.settings[name]}"
                return f"{self.name} and {other.name} were run with different settings ({name}: {values})"
        return ""


def comparable_groups(
    runs: Iterable[RunResult], *, apart: Callable[[RunResult, RunResult], str] = RunResult.why_not_averaged
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


def common_cells(runs: Iterable[RunResult]) -> list[tuple[str, float]]:
    """The cells that all of the runs were judged on, sorted."""
    held = [set(run.cells) for run in runs]
    return sorted(set.intersection(*held)) if held else []


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
    plan: Planned | None = None
    only_seeds: tuple[int, ...] | None = None
    """Those that were asked for; None where all were."""

    def of(self, arm: str) -> dict[int, RunResult]:
        """The usable runs of an arm by seed."""
        return {run.seed: run for run in self.runs if run.arm == arm}

    @property
    def read(self) -> list[str]:
        """Numbers of the summaries that the plan describes in addition to the primary endpoint."""
        return [name.removeprefix("-") for name in self.plan.read] if self.plan else []

    def sign(self, name: str) -> int:
        """-1 for an endpoint that is better when it is lower, as the plan may say of a study's own number; else 1."""
        return -1 if endpoint(name).sign < 0 or (self.plan and f"-{name}" in self.plan.read) else 1

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each run, by (arm, seed): facts, and as float num_judged, expert and each endpoint under its dotted name."""
        facts = ("arm", "seed", "world", "commits", "initial_policy", "alarms")
        numbers = list(
            dict.fromkeys(["num_judged", "expert", *ENDPOINTS, *self.read, *(name for run in self.runs for name in run.scalars)])
        )
        rows = [{name: getattr(run, name) for name in (*facts, "num_judged", "expert")} | run.scalars for run in self.runs]
        frame = pd.DataFrame(rows, columns=[*facts, *numbers])
        return frame.astype(dict.fromkeys(numbers, float)).set_index(["arm", "seed"])

    def values(self, arm: str, seeds: Sequence[int], name: str) -> pd.Series:
        """An endpoint of an arm by seed; NaN where a run did not measure it."""
        return self.frame[name].loc[arm].loc[list(seeds)] if seeds else pd.Series(dtype=float)


def read_sweep(path: Path, *, seeds: range | None = None) -> Sweep:
    """A sweep from its folder, or from a study's `results.csv`, next to which its plan lies.

    Args:
        path: of the folder with runs as <arm>/seed_<n>, or of the table.
        seeds: runs with other seeds are ignored; None takes all.

    Raises:
        ValueError: there is no such folder or file, no run in it that can be used, or a plan that cannot be read.
    """
    path, notes = Path(path), list[str]()
    folder = path.parent if path.suffix == ".csv" else path
    plan = read_plan(folder)
    sweep = Sweep(folder=folder, arms=[], runs=[], notes=[], auc_ends={}, plan=plan, only_seeds=None if seeds is None else tuple(seeds))
    if path.suffix == ".csv":
        everything = read_table(path)
        places = {run.name: run.seed for run in everything}
        runs = [run for run in everything if seeds is None or run.seed in seeds]
    else:
        folders = run_folders(folder)
        places = {f"{place.parent.name}/{place.name}": seed_of(place) for place in folders}
        runs, notes = read_results([place for place in folders if seeds is None or seed_of(place) in seeds], read=sweep.read)
    if seeds is not None and not {*places.values()} & {*seeds}:
        asked = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
        raise ValueError(f"--seeds must hold a seed of the sweep ({', '.join(map(str, sorted({*places.values()})))}), got {asked}")
    if not runs:
        raise ValueError(f"sweep must hold a finished run, got {str(path)!r}; {'; '.join(notes[:3])}".rstrip("; "))
    runs, ends, short = with_areas_and_gains(runs)
    counted = [run for run in runs if run.num_judged is not None]
    for run in counted:
        most = max(other.num_judged or 0 for other in counted if not run.why_not(other))
        if run.num_judged != most:
            short.append(f"{run.name} is scored on {run.num_judged} held-out dialogues at the end, others on {most}; those lacking broke.")
    return replace(sweep, arms=sorted({name.partition("/")[0] for name in places}), runs=runs, notes=[*notes, *short], auc_ends=ends)


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


def read_results(places: Sequence[Path], *, read: Collection[str] = ()) -> tuple[list[RunResult], list[str]]:
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
            notes.append(f"{place.parent.name}/{place.name} is left out: {why}")
    return runs, notes


def read_result(place: Path, *, read: Collection[str] = ()) -> RunResult:
    """Reads one run; ERROR dialogues count in neither its curve nor its cells.

    Raises:
        ValueError: it is unfinished, of another seed than its folder, no replay of the run that it names, or lacks evaluations.
    """
    run = read_run(place)
    if run.summary is None:
        raise ValueError("it has not finished (no summary.json); resume it to have it counted")
    if run.summary.get("seed") != seed_of(place):
        raise ValueError(f"its summary says seed {run.summary.get('seed')!r}, its folder {seed_of(place)}")
    if reason := run.why_no_copy():
        raise ValueError(reason)
    summary, settings = dict(leaves(run.summary)), dict(leaves(run.config))
    scalars: dict[str, float | None] = {}
    for name in (*ENDPOINTS, *read, "reference.L6.score"):
        value = summary.get(name)
        scalars[name] = float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    grades = grades_of(run.evaluation())
    seen, full = looks(grades), dict[int, dict[tuple[str, float], list[float]]]()
    if seen and seen[0].policy_tokens != 0:
        raise ValueError(f"evaluation.jsonl must begin before training, got a first look at {seen[0].policy_tokens} policy tokens")
    for grade in grades:
        if grade.grid == "full":
            full.setdefault(grade.look, {}).setdefault((grade.family, grade.strictness), []).append(grade.emotion)
    # The full grid before training is not the end.
    last = full[max(full)] if len(full) > 1 else {}
    for what, here, counted in (
        ("dialogues at the end", sum(map(len, last.values())), summary.get("heldout.n_dialogues")),
        ("mean score over tokens", area_of(seen), scalars[AUC] if seen else None),
    ):
        if counted and not math.isclose(here, counted, abs_tol=1e-3):
            raise ValueError(f"evaluation.jsonl is not whole: {what} {here:g}, and its summary says {counted:g}")
    at_steps = {name: dict(zip(*run.series(key), strict=True)) for name, key in METRICS_AT_LOOKS.items()}
    expert = scalars.pop("reference.L6.score")
    return RunResult(
        arm=place.parent.name,
        seed=seed_of(place),
        world=run.world,
        settings={**settings, "budget.policy_tokens": int(settings["budget.policy_tokens"])},
        commits=tuple(commit[:12] + "+" * commit.endswith("+") for commit in run.commits),
        initial_policy=str(run.provenance.get("initial_policy") or ""),
        scalars={**scalars, FORGOTTEN: forgotten(grades)},
        alarms_at=tuple(f"{alarm['name']}@{alarm['step']}" for alarm in setting(run.summary, "collapse.alarms", [])),
        looks=tuple(look._asdict() | {name: values.get(look.step) for name, values in at_steps.items()} for look in seen),
        cells={cell: statistics.fmean(emotions) for cell, emotions in sorted(last.items())},
        num_judged=summary.get("heldout.n_dialogues"),
        expert=expert,
        num_steps=summary.get("steps"),
    )


def with_areas_and_gains(runs: Sequence[RunResult]) -> tuple[list[RunResult], dict[int, float], list[str]]:
    """The runs with `heldout.auc` and `heldout.gain`, where the areas of each budget end, and notes on short curves.

    Areas reach to the budget, or to the end of the shortest curve where none reaches that far (runs that end by steps). What lies beyond
    is cut off; a finished run that ended earlier keeps its last score to the end, because dropping it would favour arms that collapse.
    """
    ends: dict[int, float] = {}
    notes = [f"{run.name} has no evaluations: the area under its curve is unknown." for run in runs if run.curve is None]
    for budget in sorted({run.budgets[0] for run in runs}):
        lasts = {run.name: float(run.curve.tokens[-1]) for run in runs if run.budgets[0] == budget and run.curve is not None}
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
        if short := [f"{name} at {last:,.0f}" for name, last in lasts.items() if last < 0.98 * end]:
            whose = "its last score is" if len(short) == 1 else "their last scores are"
            notes.append(f"Before {end:,.0f} policy tokens ended {', '.join(short)}: {whose} held to the end.")
    found = []
    for run in runs:
        area = run.curve.area_to(ends[run.budgets[0]]) if run.curve and run.budgets[0] in ends else None
        first, last = run.scalars["start.score"], run.scalars["heldout.score"]
        gain = None if first is None or last is None else last - first
        found.append(replace(run, scalars={**run.scalars, GAIN: gain, AUC: area}))
    return found, ends, notes


RESULTS, CURVES, SETTINGS = "results.csv", "curves.csv", "settings.json"
FACTS = ("arm", "seed", "world", "commits", "initial_policy", "budget", "steps", "num_judged", "expert", "collapsed", "alarms")
"""Columns about a run, before its endpoints. `collapsed` is the step at which a study's label places the collapse, `no`, or empty."""
MEASURED = tuple(name for name in ENDPOINTS if name not in (AUC, GAIN))
"""Endpoints in a row; the gain and the area under the curve follow from the rest."""


def read_csv(path: Path) -> pd.DataFrame:
    """A table as texts, empty where nothing is; without rows where there is no file."""
    return pd.read_csv(path, dtype=str, keep_default_na=False) if path.is_file() else pd.DataFrame()


def read_table(path: Path) -> list[RunResult]:
    """The runs of a `results.csv`, by arm and seed.

    Raises:
        ValueError: a file or a column is missing.
    """
    for needed in (path, path.parent / CURVES, path.parent / SETTINGS):
        if not needed.is_file():
            raise ValueError(f"{needed} must be there to compare {path}")

    def number(text: str | None) -> float | None:
        return float(text) if text else None

    common = json.loads((path.parent / SETTINGS).read_text(encoding="utf-8"))
    courses: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in read_csv(path.parent / CURVES).to_dict("records"):
        courses.setdefault((row.pop("arm"), row.pop("seed")), []).append({str(name): number(cell) for name, cell in row.items()})
    table = read_csv(path)
    if lacking := {"arm", "seed", "world"} - {*table}:
        raise ValueError(f"{path} must have the columns of a study's table, got none named {', '.join(sorted(lacking))}")
    table = table.reindex(columns=dict.fromkeys([*FACTS, "settings", *MEASURED, *table]), fill_value="")
    runs = []
    for row in table.to_dict("records"):
        settings = json.loads(row["settings"] or "{}")
        absent = set(settings.pop("absent", ()))
        scalars = {str(name): number(cell) for name, cell in row.items() if name not in (*FACTS, "settings")}
        runs.append(
            RunResult(
                arm=row["arm"],
                seed=int(row["seed"]),
                world=row["world"],
                settings={name: value for name, value in common.items() if name not in absent} | settings,
                commits=tuple(row["commits"].split()),
                initial_policy=row["initial_policy"],
                scalars=scalars,
                alarms_at=tuple(row["alarms"].split()),
                looks=tuple(courses.get((row["arm"], row["seed"]), ())),
                num_judged=int(row["num_judged"]) if row["num_judged"] else None,
                expert=number(row["expert"]),
                num_steps=int(row["steps"]) if row["steps"] else None,
            )
        )
    return sorted(runs, key=lambda run: (run.arm, run.seed))


def export(folder: Path, out: Path) -> str:
    """Adds the finished runs of a sweep to the tables of a study, whose rows stay as they are; returns a message.

    Args:
        folder: the sweep's folder, with runs as <arm>/seed_<n>.
        out: the study's folder, made where there is none.

    Raises:
        ValueError: no run is finished, or another plan or another run is there.
    """

    def as_json(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, default=str)

    sweep, before = read_sweep(folder), read_plan(out)
    if sweep.plan and before and not sweep.plan.decides_as(before):
        raise ValueError(f"{out / PLAN} must be the plan of {folder}, got another; export to another folder")
    out.mkdir(parents=True, exist_ok=True)
    own = [{name: value for name, value in run.settings.items() if name not in BY_ITSELF} for run in sweep.runs]
    if not (out / SETTINGS).is_file():
        known = [name for name in own[0] if all(name in settings for settings in own)]
        most = {name: Counter(as_json(settings[name]) for settings in own).most_common(1)[0][0] for name in known}
        most_common = {name: json.loads(value) for name, value in most.items()}
        write_whole(out / SETTINGS, json.dumps(most_common, indent=0, ensure_ascii=False) + "\n")
    common = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
    results, curves = read_csv(out / RESULTS), read_csv(out / CURVES)
    there = {(row["arm"], row["seed"]): row for row in results.to_dict("records")}
    measured = list(dict.fromkeys((*MEASURED, *(name for name in sweep.read if name not in (AUC, GAIN)))))
    new_rows, new_looks = list[dict[str, str]](), list[dict[str, str]]()
    for run, settings in zip(sweep.runs, own, strict=True):
        differing = {name: value for name, value in settings.items() if name not in common or common[name] != value}
        if absent := [name for name in common if name not in settings]:
            # Names in `settings.json` that this run does not know.
            differing["absent"] = absent
        cells: dict[str, Any] = {
            "arm": run.arm,
            "seed": run.seed,
            "world": run.world,
            "commits": " ".join(run.commits),
            "initial_policy": run.initial_policy,
            "budget": run.budgets[0],
            "steps": run.num_steps,
            "num_judged": run.num_judged,
            "expert": run.expert,
            "alarms": " ".join(run.alarms_at),
            **{name: run.scalars.get(name) for name in measured},
            "settings": as_json(differing) if differing else None,
        }
        row = {name: "" if cell is None else str(cell) for name, cell in cells.items()}
        old = there.get((run.arm, str(run.seed)))
        if old is None:
            new_rows.append(row)
            new_looks += [{"arm": run.arm, "seed": row["seed"], **look} for look in run.looks]
        elif other := [name for name in measured if old.get(name, "") != row[name]]:
            name = other[0]
            raise ValueError(f"{out / RESULTS} holds another {run.name}: its {name} is {old.get(name, '')}, here {row[name]}")
    of_study = [str(name) for name in results if name not in (*FACTS, *measured, "settings")]
    for name, table, new, columns in (
        (RESULTS, results, new_rows, (*FACTS, *measured, *of_study, "settings")),
        (CURVES, curves, new_looks, ("arm", "seed", *Look._fields, *METRICS_AT_LOOKS)),
    ):
        whole = pd.DataFrame([*table.to_dict("records"), *new], columns=columns, dtype=object)
        # A column that is empty in all rows is left out.
        filled = whole.mask(whole == "").dropna(axis=1, how="all")
        write_whole(out / name, filled.to_csv(index=False, lineterminator="\n"))
    if sweep.plan and not before:
        write_whole(out / PLAN, (folder / PLAN).read_bytes())
    return "\n".join([*sweep.notes, f"{len(new_rows)} new of {len(sweep.runs)} finished runs are in {out / RESULTS}"])
