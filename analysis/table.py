"""A sweep as two small tables: `results.csv`, one row a run, and `curves.csv`, one row a look at the held-out users.

They hold what a comparison reads of runs, so that a verdict can be recomputed without the run folders. Two files stand beside them:
`settings.json` with the settings of the sweep, from which each row states only its own differences, and the sweep's `plan.json`.
`write_table` appends: rows that are there stay as they are.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.endpoints import COMPUTED, ENDPOINTS, FORGOTTEN, Curve, check_curve, looks, read_grades
from analysis.runs import read_run, setting
from analysis.sweeps import BY_ITSELF, PLAN, RunResult, Sweep, read_kept_plan, read_results, read_sweep, run_folders, sweep_of
from simulator.files import write_whole

RESULTS, CURVES, SETTINGS = "results.csv", "curves.csv", "settings.json"
KEY = ("arm", "seed")
FACTS = ("world", "commits", "initial_policy", "budget", "steps", "num_judged", "expert", "collapsed", "alarms")
"""Columns about a run beside its endpoints. `collapsed` is the step at which a study's label places the collapse, `no`, or empty."""
MEASURED = tuple(name for name in ENDPOINTS if name not in COMPUTED or name == FORGOTTEN)
"""Endpoints that stand in a row; the gain and the area under the curve follow from the rest."""
AT_LOOKS = {"strictness": "curriculum/strictness", "entropy": "actor/entropy", "reward_density": "curriculum/reward_density"}
"""Columns of `curves.csv` that are metrics of the step at which a look was taken."""
CURVE_COLUMNS = (*KEY, "step", "policy_tokens", "score", *AT_LOOKS)
ABSENT = "absent"
"""Key of a row's settings: names of `settings.json` that this run does not know."""

Row = dict[str, str]


def export(folder: Path, out: Path) -> str:
    """Adds the finished runs of a sweep to the tables of a study; returns what is to be said.

    Args:
        folder: the sweep's folder, with runs as <arm>/seed_<n>.
        out: the study's folder, made where there is none.

    Raises:
        ValueError: no run is finished, or another plan or another run is there.
    """
    read = read_kept_plan(folder).read
    runs, notes = read_results(run_folders(folder), read=read)
    if not runs:
        raise ValueError(f"sweep must hold a finished run, got {str(folder)!r}; {'; '.join(notes[:3])}")
    plan, kept = folder / PLAN, out / PLAN
    if plan.is_file() and kept.is_file() and same_plan(kept) != same_plan(plan):
        raise ValueError(f"{kept} must be the plan of {folder}, got another; export to another folder")
    num_new = write_table(folder, runs, out, read=read)
    if plan.is_file() and not kept.is_file():
        write_whole(kept, plan.read_bytes())
    return "\n".join([*notes, f"{num_new} new of {len(runs)} finished runs are in {out / RESULTS}"])


def same_plan(path: Path) -> tuple[Any, Any]:
    """What two sweeps of one plan share: contrasts and endpoint."""
    plan = json.loads(path.read_text(encoding="utf-8"))
    return plan["contrasts"], plan["primary"]


def write_table(folder: Path, runs: Sequence[RunResult], out: Path, *, read: Iterable[str] = ()) -> int:
    """Appends the rows of runs that are not there yet; returns how many these are.

    Args:
        read: numbers of the runs' summaries that stand in a row beside the endpoints.

    Raises:
        ValueError: a run's row is there with other numbers.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / SETTINGS
    if path.is_file():
        common = json.loads(path.read_text(encoding="utf-8"))
    else:
        common = most_common([own_settings(run) for run in runs])
        write_whole(path, json.dumps(common, indent=0, ensure_ascii=False) + "\n")
    rows, curves = read_rows(out / RESULTS), read_rows(out / CURVES)
    there = {(row["arm"], row["seed"]): row for row in rows}
    measured = [name for name in dict.fromkeys((*MEASURED, *read)) if name not in COMPUTED or name == FORGOTTEN]
    known = {*KEY, *FACTS, *measured, "settings"}
    columns = (*KEY, *FACTS, *measured, *(name for name in (rows[0] if rows else ()) if name not in known), "settings")
    num_new = 0
    for run in runs:
        row = row_of(run, folder / run.arm / f"seed_{run.seed}", common, columns=columns)
        before = there.get((run.arm, str(run.seed)))
        if before is None:
            rows.append(row)
            curves += curve_rows(run, folder / run.arm / f"seed_{run.seed}")
            num_new += 1
        elif other := [name for name in measured if before.get(name, "") != row[name]]:
            name = other[0]
            raise ValueError(f"{out / RESULTS} holds another {run.name}: its {name} is {before.get(name, '')}, here {row[name]}")
    write_rows(out / RESULTS, columns, rows)
    write_rows(out / CURVES, CURVE_COLUMNS, curves)
    return num_new


def own_settings(run: RunResult) -> dict[str, Any]:
    """A run's settings without those that name it."""
    return {name: value for name, value in run.settings.items() if name not in BY_ITSELF}


def most_common(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that all runs know, each with the value that most of them have."""
    names = [name for name in settings[0] if all(name in others for others in settings)]
    return {name: json.loads(Counter(as_json(others[name]) for others in settings).most_common(1)[0][0]) for name in names}


def as_json(value: Any) -> str:
    """A setting's value as text that compares equal where the value does."""
    return json.dumps(value, ensure_ascii=False, default=str)


def row_of(run: RunResult, place: Path, common: Mapping[str, Any], *, columns: Sequence[str]) -> Row:
    """A run's row of `results.csv`.

    Args:
        place: its folder.
        common: the settings that the row states its differences from.
    """
    summary = read_run(place).summary
    own = own_settings(run)
    differing: dict[str, Any] = {
        name: value for name, value in own.items() if name not in common or as_json(common[name]) != as_json(value)
    }
    if absent := [name for name in common if name not in own]:
        differing[ABSENT] = absent
    alarms = [f"{alarm['name']}@{alarm['step']}" for alarm in setting(summary, "collapse.alarms", [])]
    facts = {
        "arm": run.arm,
        "seed": run.seed,
        "world": run.world,
        "commits": " ".join(commit[:12] + "+" * commit.endswith("+") for commit in run.commits),
        "initial_policy": run.initial_policy,
        "budget": run.budget,
        "steps": setting(summary, "steps"),
        "num_judged": run.num_judged,
        "expert": run.expert,
        "alarms": " ".join(alarms),
        "settings": as_json(differing) if differing else "",
    }
    return {name: cell(facts[name] if name in facts else run.scalars.get(name)) for name in columns}


def curve_rows(run: RunResult, place: Path) -> list[Row]:
    """A run's rows of `curves.csv`."""
    metrics = read_run(place)
    at_steps = {name: dict(zip(*metrics.series(key), strict=True)) for name, key in AT_LOOKS.items()}
    rows = []
    for look in looks(read_grades(metrics)):
        values = {"arm": run.arm, "seed": run.seed, **look._asdict(), **{name: at_steps[name].get(look.step) for name in AT_LOOKS}}
        rows.append({name: cell(values[name]) for name in CURVE_COLUMNS})
    return rows


def cell(value: Any) -> str:
    """A value as text from which the same value is read; empty for None."""
    return "" if value is None else value if isinstance(value, str) else repr(value)


def read_rows(path: Path) -> list[Row]:
    """The rows of a table; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Writes a table, whole or not at all; a column that is empty in all rows is left out."""
    rows = list(rows)
    kept = [name for name in columns if name in KEY or any(row.get(name) for row in rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, kept, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def load_sweep(path: Path, *, seeds: range | None = None) -> Sweep:
    """A sweep from its folder, or from a study's `results.csv`, beside which its plan lies.

    Args:
        seeds: runs with other seeds are ignored; None takes all.

    Raises:
        ValueError: there is no such folder or file, or no run in it that can be used.
    """
    if path.suffix != ".csv":
        return read_sweep(path, seeds=seeds)
    runs = [run for run in read_table(path) if seeds is None or run.seed in seeds]
    if not runs:
        raise ValueError(f"{path} must hold a run with one of the seeds that were asked for, got none")
    return sweep_of(path.parent, runs, [], arms=[run.arm for run in runs], seeds=seeds)


def read_table(path: Path) -> list[RunResult]:
    """The runs of a `results.csv`, by arm and seed.

    Raises:
        ValueError: a file is missing, a column is missing, or a cell holds no number.
    """
    common_path = path.parent / SETTINGS
    for needed in (path, path.parent / CURVES, common_path):
        if not needed.is_file():
            raise ValueError(f"{needed} must be there to compare {path}")
    common = json.loads(common_path.read_text(encoding="utf-8"))
    curves: dict[tuple[str, str], list[Row]] = {}
    for row in read_rows(path.parent / CURVES):
        curves.setdefault((row["arm"], row["seed"]), []).append(row)
    runs = []
    for num, row in enumerate(read_rows(path), start=2):
        try:
            runs.append(run_of(row, curves.get((row["arm"], row["seed"]), []), common))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path} must hold a run in each row, got line {num} with a bad {error}") from error
    return sorted(runs, key=lambda run: (run.arm, run.seed))


def run_of(row: Row, looks: Sequence[Row], common: Mapping[str, Any]) -> RunResult:
    """A row and its looks as a run."""
    own = json.loads(row.get("settings") or "{}")
    absent = set(own.pop(ABSENT, ()))
    scalars: dict[str, float | None] = {name: number_of(row, name) for name in (*MEASURED, *row) if name not in (*KEY, *FACTS, "settings")}
    start, end = scalars["start.score"], scalars["heldout.score"]
    curve = Curve([int(look["policy_tokens"]) for look in looks], [float(look["score"]) for look in looks]) if looks else None
    if curve:
        check_curve(curve, f"the curve of {row['arm']}/seed_{row['seed']}")
    judged = number_of(row, "num_judged")
    return RunResult(
        arm=row["arm"],
        seed=int(row["seed"]),
        world=row["world"],
        settings={name: value for name, value in common.items() if name not in absent} | own,
        commits=tuple(row.get("commits", "").split()),
        initial_policy=row.get("initial_policy", ""),
        scalars=scalars | {"heldout.gain": None if start is None or end is None else end - start},
        alarms=[alarm.partition("@")[0] for alarm in row.get("alarms", "").split()],
        curve=curve,
        cells={},
        num_judged=None if judged is None else int(judged),
        expert=number_of(row, "expert"),
    )


def number_of(row: Row, name: str) -> float | None:
    """A cell as a number; None where it is empty or there is no such column."""
    return float(row[name]) if row.get(name) else None
