"""What a teacher's run with a toy student is judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from curriculum.alarm_quality import collapse_onset, is_undecided
from curriculum.collapse import INDICATORS, Alarm, CollapseConfig, CollapseMonitor
from curriculum.teacher import Mode
from curriculum.trial import Trace


def figures(trace: Trace) -> dict[str, float]:
    """The figures that apply to a run's student, by name; NaN for what did not happen.

    `rmse`: strictness issued against the student's frontier, where that is the yardstick (`tracking`). Otherwise, of the exact
    examination: `final` or, by family, `macro`: its mean at the end; `auc`: the mean of that over all updates; `worst`: the least cell at
    the end; by strictness, `easy` and `hard`: mean of the three easiest and the four hardest cells at the end; `collapsed`: 1 if it fell
    for long (`curriculum.alarm_quality.collapse_onset`), NaN where it ended low before that could be told.

    `noise_share` of the tasks went to families of pure noise. `first_alarm` and `first_collapse_alarm`: update of the collapse monitor's
    first alarm of any name and of the one that asks for two kinds of evidence. `probe_share` of all rollouts were the probe panel's.
    `us_per_task`: CPU time of propose and observe, microseconds; the only figure that differs between repetitions.
    """
    student = trace.student
    num_tasks = sum(map(len, trace.tasks))
    out = tracking(trace) if trace.frontiers else scored(trace)
    if student.noise:
        out["noise_share"] = sum(task.family in student.noise for tasks in trace.tasks for task in tasks) / num_tasks
    if student.watched:
        fired = alarms(trace)
        out["first_alarm"] = min((float(alarm.step) for alarm in fired), default=math.nan)
        out["first_collapse_alarm"] = min((float(alarm.step) for alarm in fired if alarm.name == "collapse"), default=math.nan)
    out["probe_share"] = trace.num_probes / (trace.num_rollouts + trace.num_probes)
    out["us_per_task"] = 1e6 * trace.teacher_cpu_s / num_tasks
    return out


def scored(trace: Trace) -> dict[str, float]:
    """Figures of the exact examination; see `figures`."""
    scores = trace.student.scores()
    name = "final" if trace.student.by_strictness else "macro"
    out = {name: float(scores.mean()), "auc": float(np.mean(trace.series["score"])), "worst": float(scores.min())}
    if trace.student.by_strictness:
        out |= {"easy": float(scores[:3].mean()), "hard": float(scores[-4:].mean())}
    return {**out, "collapsed": collapsed(trace.series["score"])}


def collapsed(scores: Sequence[float]) -> float:
    """1 where a score, one an update, collapsed (`curriculum.alarm_quality`), 0 where it did not, NaN where the run ended undecided."""
    updates = range(len(scores))
    return math.nan if is_undecided(updates, scores) else float(collapse_onset(updates, scores) is not None)


def tracking(trace: Trace) -> dict[str, float]:
    """Root mean square distance of the strictness issued from the frontier at that time.

    With one family: of the mean strictness of each update's tasks. With several: of each task issued at the frontier (of each task, where a
    teacher marks none so) from the frontier of its family. Over the last two thirds of the run; `rmse_whole` is over all of it.
    """
    late = len(trace.tasks) // 3
    issued = list(zip(trace.tasks, trace.frontiers, strict=True))
    if len(trace.student.families) == 1:
        return {"rmse": _rms([np.mean([task.strictness for task in tasks]) - float(f_F[0]) for tasks, f_F in issued[late:]])}
    index = {family: i for i, family in enumerate(trace.student.families)}
    marked = any(task.mode is Mode.FRONTIER for tasks in trace.tasks for task in tasks)
    misses = [
        [task.strictness - float(f_F[index[str(task.family)]]) for task in tasks if task.mode is Mode.FRONTIER or not marked]
        for tasks, f_F in issued
    ]
    return {"rmse": _rms(list(chain.from_iterable(misses[late:]))), "rmse_whole": _rms(list(chain.from_iterable(misses)))}


def alarms(trace: Trace, config: CollapseConfig | None = None) -> list[Alarm]:
    """Every alarm that the collapse monitor raises on what the run showed of the indicators it knows."""
    monitor = CollapseMonitor(config or CollapseConfig())
    names = [name for name in trace.series if name in INDICATORS]
    rows = zip(*(trace.series[name] for name in names), strict=True)
    return [alarm for update, row in enumerate(rows) for alarm in monitor.observe(update, dict(zip(names, row, strict=True)))]


def _rms(misses: Sequence[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(misses))))
