"""`python -m curriculum alarms`: precision, recall and lead time of every alarm over recorded runs and toy students."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from curriculum.collapse.history import INDICATOR_METRICS, CollapseConfig
from curriculum.collapse.monitor import ALARMS, CollapseMonitor
from curriculum.toy.benchmark import RECORDED, Arm, check_jobs, parse_arms
from curriculum.toy.simulation import configure
from curriculum.toy.students import STUDENTS
from simulator.files import check_out, write_whole
from studies.alarm_quality.courses import course_of_run, course_of_student, runs_in
from studies.alarm_quality.quality import LABELS, LOW_UPDATES, Course, Share, Verdict, judge, quality

BY_STRICTNESS = ("S2_improving", "S2_slow", "S2_noisy_ceiling", "S2_delay16", "S3_forgetting", "S4_collapse", "non_monotone", "dense")
"""Students that learn and are examined by strictness: those on which a run can be labelled."""
ARMS = ("fixed:strictness=0.1", "fixed:strictness=0.2", "fixed:strictness=0.5", "fixed:strictness=0.9", "uniform", "frontier")


class Judged(NamedTuple):
    """What is kept of a run."""

    verdicts: dict[str, Verdict]
    """By label."""
    measured: set[str]
    """Indicators that it showed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--runs", nargs="+", type=Path, default=[], metavar="RUNDIR", help="folders of runs or sweeps")
    parser.add_argument("--students", nargs="+", default=[], metavar="STUDENT", help=f"toy students, or all: {', '.join(BY_STRICTNESS)}")
    parser.add_argument("--teachers", nargs="+", default=list(ARMS), metavar="TEACHER", help=f"of the students (default {' '.join(ARMS)})")
    parser.add_argument("--seeds", type=int, default=8, help="seeds of each student with each arm (default 8)")
    parser.add_argument("--first-seed", type=int, default=0, help="the lowest of them (default 0)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the monitor, e.g. patience=3")
    parser.add_argument("--processes", type=int, default=2, help="at once, for the students (default 2)")
    parser.add_argument("--out", type=Path, help="JSON file for every figure and every run's verdict")


def run(args: argparse.Namespace) -> int:
    """Judges, prints the table and writes the file; returns the exit code."""
    try:
        config = configured(args.set)
        tasks = student_tasks(args)
        if not args.runs and not tasks:
            raise ValueError("--runs or --students must name something to judge alarms by")
        check_out(args.out)
        # A shell's * names the logs beside the runs, too.
        places = [place for place in args.runs if not place.is_file()] or args.runs
        judged, left_out = judged_runs([folder for place in places for folder in runs_in(place)], config)
        if left_out and not judged and not tasks:
            raise ValueError(f"--runs must name a run that can be read; {'; '.join(left_out[:3])}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    judged.extend(play(tasks, config, args.processes))
    verdicts = {label: [each.verdicts[label] for each in judged] for label in LABELS}
    print("\n".join([table(verdicts, set().union(*(each.measured for each in judged))), *left_out]))
    if args.out:
        document = {**report(verdicts, config), "left_out": left_out}
        write_whole(args.out, json.dumps(document, indent=1) + "\n")
    return 0


def configured(settings: Iterable[str]) -> CollapseConfig:
    """The monitor's settings with `name=value` changed.

    Raises:
        ValueError: no such setting, no number, or one out of range.
    """
    names = [item.name for item in fields(CollapseConfig)]
    changed: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in names:
            raise ValueError(f"--set must be NAME=VALUE with a setting of {', '.join(names)}, got {setting!r}")
        changed[name] = value
    return configure(CollapseConfig(), changed, "collapse")


def student_tasks(args: argparse.Namespace) -> list[tuple[str, Arm, int]]:
    """Student, arm and seed of every run to simulate.

    Raises:
        ValueError: no such student, arm, or number.
    """
    names = list(BY_STRICTNESS) if args.students == ["all"] else args.students
    if unknown := [name for name in names if name not in BY_STRICTNESS]:
        why = "which is not examined by strictness or never learns" if unknown[0] in STUDENTS else "which there is not"
        raise ValueError(f"--students must be all or among {', '.join(BY_STRICTNESS)}, got {unknown[0]!r}, {why}")
    for option, value, least in (("--seeds", args.seeds, 1), ("--first-seed", args.first_seed, 0), ("--processes", args.processes, 1)):
        if value < least:
            raise ValueError(f"{option} must be >= {least}, got {value}")
    arms = parse_arms(args.teachers)
    if replaying := [arm.name for arm in arms if any(str(value).startswith(RECORDED) for value in arm.settings.values())]:
        raise ValueError(f"--teachers must not replay another run here, got {replaying[0]!r}")
    check_jobs(names, arms)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    return [(name, arm, seed) for name in names for arm in arms for seed in seeds]


def judged_runs(folders: Iterable[Path], config: CollapseConfig) -> tuple[list[Judged], list[str]]:
    """The runs with their verdicts, and of each one that cannot be read why it is left out."""
    judged, left_out = [], []
    for folder in folders:
        try:
            judged.append(judged_by(course_of_run(folder), config))
        except (ValueError, OSError) as error:
            left_out.append(f"{folder} is left out: {error}")
    return judged, left_out


def judged_by(course: Course, config: CollapseConfig) -> Judged:
    """A course with its verdicts."""
    return Judged(judge(course, config, LABELS), {name for values in course.values for name in values})


def play_and_judge(student: str, arm: Arm, seed: int, config: CollapseConfig) -> Judged:
    """One run of a toy student, from start to verdict."""
    return judged_by(course_of_student(student, arm, seed), config)


def play(tasks: Sequence[tuple[str, Arm, int]], config: CollapseConfig, num_processes: int) -> list[Judged]:
    """The students' runs, in the order of the tasks; counts on a terminal."""
    if not tasks:
        return []
    spawn = get_context("spawn")  # a fork of a process with threads may break off
    with ProcessPoolExecutor(min(num_processes, len(tasks)), spawn) as pool:
        waiting = [pool.submit(play_and_judge, *task, config) for task in tasks]
        for number, _ in enumerate(as_completed(waiting), start=1):
            if sys.stderr.isatty():
                print(f"\r{number} of {len(tasks)} runs", end="\n" if number == len(tasks) else "", file=sys.stderr)
        return [done.result() for done in waiting]


def table(verdicts: Mapping[str, Sequence[Verdict]], measured: set[str]) -> str:
    """Every alarm that rang, most precise first."""
    judged = next(iter(verdicts.values()))
    lines = [f"{len(judged)} runs; " + "; ".join(f"{_collapsed(each)} collapsed by the {name}" for name, each in verdicts.items())]
    if any(map(_undecided, verdicts.values())):
        left_out = "; ".join(f"{_undecided(each)} by the {name}" for name, each in verdicts.items())
        lines.append(f"left out, low at the end for fewer than {LOW_UPDATES} updates: {left_out}")
    if any(map(_unexamined, verdicts.values())):
        left_out = "; ".join(f"{_unexamined(each)} by the {name}" for name, each in verdicts.items())
        panel = ", ".join(INDICATOR_METRICS[cell] for cell in CollapseMonitor.PANEL)
        lines.append(f"left out, without any look at the panel ({panel}): {left_out}")
    lines.append(f"{'alarm':22}{'evidence':11}{'precision':26}{'recall':26}{'median lead':12}")
    rows = [(name, quality(name, judged)) for name in ("collapse", *ALARMS)]
    rang = {name for verdict in judged for name in verdict.first}
    for name, found in sorted(rows, key=lambda row: -_or_zero(row[1].precision.value)):
        evidence = "two" if name == "collapse" else ALARMS[name][0] or "none"
        if name in rang:
            lead = "-" if math.isnan(found.median_lead) else f"{found.median_lead:g}"
            lines.append(f"{name:22}{evidence:11}{_as_text(found.precision):26}{_as_text(found.recall):26}{lead:12}".rstrip())
    silent = [name for name, _ in rows if name not in rang]
    lines.append(f"never rang: {', '.join(silent) or 'none'}")
    lines.append(f"indicators measured: {', '.join(sorted(measured))}")
    return "\n".join(lines)


def report(verdicts: Mapping[str, Sequence[Verdict]], config: CollapseConfig) -> dict[str, Any]:
    """All figures, JSON-able."""
    labels = {
        label: {
            "num_runs": len(judged),
            "num_collapsed": _collapsed(judged),
            "num_undecided": _undecided(judged),
            "num_unexamined": _unexamined(judged),
            "alarms": {name: dict(_figures(name, judged)) for name in ("collapse", *ALARMS)},
            "runs": [asdict(verdict) for verdict in judged],
        }
        for label, judged in verdicts.items()
    }
    return {"settings": asdict(config), "labels": labels}


def _figures(alarm: str, verdicts: Sequence[Verdict]) -> Iterator[tuple[str, Any]]:
    found = quality(alarm, verdicts)
    for name, share in (("precision", found.precision), ("recall", found.recall)):
        value = None if math.isnan(share.value) else share.value
        yield name, {"value": value, "ci95": list(share.interval), "num_hits": share.num_hits, "num_all": share.num_all}
    yield "median_lead", None if math.isnan(found.median_lead) else found.median_lead
    yield "leads", found.leads


def _as_text(share: Share) -> str:
    if not share.num_all:
        return "-"
    low, high = share.interval
    return f"{share.value:.2f} [{low:.2f}, {high:.2f}] {share.num_hits}/{share.num_all}"


def _collapsed(verdicts: Iterable[Verdict]) -> int:
    return sum(verdict.onset is not None for verdict in verdicts)


def _undecided(verdicts: Iterable[Verdict]) -> int:
    return sum(verdict.undecided and verdict.examined for verdict in verdicts)


def _unexamined(verdicts: Iterable[Verdict]) -> int:
    return sum(not verdict.examined for verdict in verdicts)


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
