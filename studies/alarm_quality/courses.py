"""Where the courses of runs come from on which alarms are judged: folders of real runs, and toy students under one teacher or another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from analysis.runs import read_metrics
from curriculum.collapse.history import INDICATOR_METRICS
from curriculum.collapse.indicators import at_bounds_share, spearman
from curriculum.signals import alike_excess, best_of_k_gain, effective_groups, neighbours_success, survivors, within_group_std
from curriculum.toy.benchmark import Arm, resolve
from curriculum.toy.simulation import SERIES, Observation, simulate
from curriculum.toy.students import GRID, STUDENTS, CollapseProne
from studies.alarm_quality.quality import Course

METRICS = "metrics.jsonl"
"""File of a run's folder with one record a step: `step` and every metric, null where it was not measured."""
SUMMARY = "summary.json"
"""File of a run that has ended."""
SAME_IN_TOYS = frozenset({"strategy_entropy"})
"""A toy student has no tokens: the entropy of its choice is the entropy of its strategy."""


def runs_in(folder: Path) -> list[Path]:
    """The runs of a sweep's folder, `<arm>/seed_<n>`, or of an arm's; of any other folder the folder itself.

    Raises:
        ValueError: there are none, and it has no metrics of its own.
    """
    found = sorted(path for pattern in ("seed_*", "*/seed_*") for path in folder.glob(pattern) if path.is_dir())
    if not found:
        require_metrics(folder)
    return found or [folder]


def require_metrics(folder: Path) -> None:
    """Raises unless a folder holds the metrics of a run.

    Raises:
        ValueError: it does not.
    """
    path = folder / METRICS
    if not path.is_file():
        why = f"which has no {METRICS}" if folder.is_dir() else "which is not there"
        raise ValueError(f"--runs must name folders of runs, got {str(folder)!r}, {why}")


def course_of_run(folder: Path) -> Course:
    """What the folder of a run recorded of the indicators.

    Raises:
        ValueError: the folder has no metrics, a record of them cannot be read, or they end before the run did.
    """
    require_metrics(folder)
    lines = read_metrics(folder / METRICS, appended=False)
    last, num_steps = lines[-1]["step"] if lines else 0, steps_counted(folder)
    if last < num_steps:
        raise ValueError(f"{folder / METRICS} ends at step {last} of the {num_steps} that the summary counts")
    keys = INDICATOR_METRICS.items()
    values = [{name: float(line[key]) for name, key in keys if _is_measured(line.get(key))} for line in lines]
    return Course(name=str(folder), steps=[line["step"] for line in lines], values=values)


def _is_measured(value: object) -> bool:
    """Whether a line holds a number there: not null, and not the NaN that other trainers write."""
    return isinstance(value, int | float) and not math.isnan(value)


def steps_counted(folder: Path) -> int:
    """The steps that the summary of a run counts; 0 where it has none that can be read."""
    try:
        counted = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return counted if isinstance(counted, int) else 0


def course_of_student(student: str, arm: Arm, seed: int) -> Course:
    """What a toy student shows with a teacher; its panel is an exact examination at every update."""
    settings = resolve(arm.settings, num_updates=STUDENTS[student](np.random.default_rng(0)).num_updates)
    series = simulate(student, arm.kind, settings, seed, series={**SERIES, **PANEL_SERIES, **SIGNAL_SERIES}).series
    names = [name for name in INDICATOR_METRICS if name in series]
    steps = list(range(len(series["score"])))
    values = [{name: series[name][i] for name in names if math.isfinite(series[name][i])} for i in steps]
    return Course(name=f"{student} {arm.name} seed {seed}", steps=steps, values=values, same=SAME_IN_TOYS)


def _third(i: int) -> Callable[[Observation], float]:
    def cell(look: Observation) -> float:
        scores = look.student.scores()
        places = (np.arange(len(scores)) + 0.5) / len(scores)
        return float(scores[np.minimum((3 * places).astype(int), 2) == i].mean())

    return cell


def _grid_entropy(look: Observation) -> float:
    return float(np.nanmean(look.student.entropy(np.zeros(len(GRID), dtype=int), GRID)))


def _obedience(look: Observation) -> float:
    scores = look.student.scores().tolist()
    return spearman(range(len(scores)), scores)


def _strategy_entropy(look: Observation) -> float:
    return _grid_entropy(look) if isinstance(look.student, CollapseProne) else math.nan


def _alike_excess(look: Observation) -> float:
    successes_NG = np.where(np.isnan(look.batch.rewards_NG), np.nan, look.batch.successes_NG)
    successes = successes_NG.tolist()
    return alike_excess(successes, neighbours_success(look.batch.strictness_N.tolist(), successes))


def _groups_effective(look: Observation) -> float:
    rewards = look.batch.rewards_NG.tolist()
    return effective_groups(rewards) / max(len(survivors(rewards)), 1)


PANEL_SERIES: Mapping[str, Callable[[Observation], float]] = {
    "probe_reward": lambda look: float(look.student.scores().mean()),
    "probe_easy": _third(0),
    "probe_middle": _third(1),
    "probe_hard": _third(2),
    "probe_entropy": _grid_entropy,
    "obedience": _obedience,
}
"""The probe panel of a student that is examined by strictness. Exact, in place of the 25 coins that a trial plays now and then: their mean
varies by .09 from look to look, four times as much as the panel of a real run."""
SIGNAL_SERIES: Mapping[str, Callable[[Observation], float]] = {
    "strategy_entropy": _strategy_entropy,
    "alike_excess": _alike_excess,
    "groups_effective": _groups_effective,
    "reward_spread": lambda look: within_group_std(look.batch.rewards_NG.tolist()),
    "best_of_k": lambda look: best_of_k_gain(look.batch.rewards_NG.tolist()),
    "bounds_share": lambda look: at_bounds_share(look.batch.strictness_N.tolist()),
}
"""What a batch says beside what every trial looks at."""
