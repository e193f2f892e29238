"""Runs a sweep: its runs side by side as processes, each resumable, and the comparison when they have ended.

A run with a summary is done and an unfinished one resumes from its newest checkpoint, so the same command continues a sweep. The first run
goes alone until its first step is over: its pace predicts the cost of the rest.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from analysis.runs import CONFIG, METRICS, PROVENANCE, last_record, read_config, read_run
from analysis.text import count
from experiments.config import compose, laid_over, load_saved, parse_overrides, read_experiment, to_plain
from experiments.errors import ConfigError, refusing
from experiments.preflight import check, check_memory, check_needs, check_teacher, check_writable, lost_settings, memory_in_words
from experiments.resume import differences, other_users
from experiments.run_lock import SIGNALS, Interruption, check_no_writer
from experiments.sweep_plan import OWN, Cell, Sweep, SweepFile, unreached, with_texts
from policy.prior import prior_folder
from simulator.files import ExitCode, as_clock
from simulator.settings import setting
from simulator.version import recorded_world, world_of


def run_sweep(sweep: Sweep) -> ExitCode:
    """Runs the cells that are not done, and compares.

    Raises:
        ConfigError: an existing run has other settings or another world, another process writes it, or an arm's teacher cannot teach here.
    """
    if refused := refused_arms(sweep):
        rest = ",".join(arm for arm in sweep.arms if arm not in refused)
        raise ConfigError(" ".join(refused.values()) + (f" Or leave them out: arms={rest}" if rest else ""))
    check_place(sweep)
    sweep.keep_plan()
    for sentence in lost_overrides(sweep):
        print(sentence, file=sys.stderr)
    failed: list[Cell] = []
    with Interruption() as interruption, contextlib.suppress(KeyboardInterrupt):
        failed = SweepRunner(sweep, interruption).run()
    if interruption.requested:
        with contextlib.suppress(OSError):
            print(f"interrupted; the same command resumes the sweep in {sweep.folder}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if failed else ExitCode.FINISHED


def run_cell(sweep: Sweep, cell: Cell) -> ExitCode:
    """Runs one cell here, from the start or its newest checkpoint; raises ConfigError where a run that it replays has not ended."""
    from experiments.run import run

    for need in sweep.needs(cell):
        if not sweep.is_done(need):
            first = f"python -m experiments {shlex.join(sweep.words_for(need))}"
            raise ConfigError(f"{cell} replays {need}, which must have ended before; run that first: {first}")
    folder, config = sweep.run_folder(cell), sweep.config(cell)
    check_same_run(sweep, cell)
    if sweep.is_done(cell):
        print(f"{folder} has ended: {sweep.closing_score(cell)}", file=sys.stderr)
        return ExitCode.FINISHED
    if (folder / CONFIG).is_file():
        # The settings it was begun with, but the paths of now; check_same_run holds the teachers equal but for the path of a trace.
        wanted, config = config, load_saved(folder / CONFIG, [f"resume={folder}", *sweep.resume_words(cell)])
        config.runs, config.teacher = wanted.runs, wanted.teacher
    elif folder.is_dir():
        folder.rmdir()  # empty, or check_same_run refuses it
    check(config, folder, resuming=bool(config.resume))
    sweep.keep_plan()
    config.name = folder.name
    return run(config, folder, to_resume=shlex.join(sweep.words_for(cell)))


def check_place(sweep: Sweep) -> None:
    """Refuses a sweep whose folder holds other runs, whose first run lacks something on this machine, or an arm of which is too large.

    Raises:
        ConfigError: an existing run, requested or not, is not the one that the sweep would make, or is being written; as `check_needs`; or
            as `check_memory`, with the arm named.
    """
    cells = sweep.cells()
    begun = [(path.parent.name, path.name.removeprefix("seed_")) for path in sorted(sweep.folder.glob("*/seed_*/"))]
    others = [Cell(arm, int(seed)) for arm, seed in begun if arm in sweep.file_arms and seed.isdecimal()]
    for cell in dict.fromkeys([*cells, *others]):
        check_no_writer(sweep.run_folder(cell))
        check_same_run(replace(sweep, arms=sweep.file_arms), cell)
    with refusing():
        sweep.planned.refuse_other(sweep.folder)
    check_writable(sweep.folder)
    if left := [cell for cell in cells if not sweep.is_done(cell)]:
        check_needs(sweep.config(left[0]))
    for cell in first_of_each_arm(left[1:]):
        try:
            check_memory(sweep.config(cell))
        except ConfigError as error:
            raise ConfigError(f"arm {cell.arm}: {error}") from error


def first_of_each_arm(cells: Sequence[Cell]) -> list[Cell]:
    """One cell an arm."""
    return list({cell.arm: cell for cell in reversed(cells)}.values())[::-1]


def check_same_run(sweep: Sweep, cell: Cell) -> None:
    """Raises ConfigError for an existing run of another world, other users or settings, or that cannot be read."""
    folder, config = sweep.run_folder(cell), sweep.config(cell)
    another, again = "take another name= for the sweep", f"delete {folder} to run it again"
    if not (folder / CONFIG).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{cell} has no {CONFIG}; {again}")
        return
    try:
        written = read_config(folder / CONFIG)
        reason = read_run(folder).why_no_copy() if (folder / METRICS).is_file() else ""
    except (ValueError, OSError) as error:
        raise ConfigError(f"{cell} cannot be read: {error}; {again}") from error
    try:
        saved = to_plain(load_saved(folder / CONFIG))
    except ValueError as error:
        raise ConfigError(f"{folder / CONFIG} is of another version: {error}; {another}") from error
    began_in, world = recorded_world(written.get(PROVENANCE) or {}, written), world_of(config.simulator)
    if began_in != world:
        raise ConfigError(f"{folder} was run in world {began_in}, this is {world}; {another}")
    if other := other_users(written, config):
        raise ConfigError(f"{folder} was run with other users: {other}; or {another}")
    # All runs together may have been moved.
    old, new = str(saved["runs"]), str(sweep.runs)
    moved = with_texts(saved, lambda text: new + text.removeprefix(old) if text == old or text.startswith(f"{old}/") else text)
    if found := next(differences(moved, config), None):
        name, before, now = found
        raise ConfigError(f"{folder} was run with {name}={before!r}, this sweep wants {now!r}; {another}")
    if reason:
        raise ConfigError(f"{cell} cannot be used: {reason}; {again}")


def refused_arms(sweep: Sweep) -> dict[str, str]:
    """By arm with runs to make, why its teacher cannot teach here; a teacher that replays another run is not asked."""
    refused = {}
    for arm in sweep.arms:
        cell = next((cell for cell in sweep.cells() if cell.arm == arm and not sweep.is_done(cell)), None)
        if cell is None or sweep.needs(cell):
            continue
        try:
            check_teacher(sweep.config(cell))
        except ConfigError as error:
            refused[arm] = f"arm {arm}: {error}."
    return refused


def lost_overrides(sweep: Sweep) -> list[str]:
    """Notes on overrides that some arms do not take, and on settings of the file that another kind loses."""
    given = {name: value for name, value in parse_overrides(sweep.words).items() if name not in OWN}
    missed = [
        f"{name}={setting(given, name)} does not reach {', '.join(arms)}, which set it themselves or have another kind"
        for name, arms in unreached(sweep.base, sweep.arms, given).items()
    ]
    file = SweepFile.of(sweep.experiment)
    before = laid_over(read_experiment(file.base), file.settings)
    try:
        configs = [compose(base, {}, experiment=sweep.experiment) for base in (before, sweep.base)]
    except ConfigError:
        return missed  # only with an arm's settings is it a whole configuration
    return [*missed, *lost_settings(*configs, called=sweep.experiment)]


def foreseen(sweep: Sweep) -> Iterator[str]:
    """The messages of a dry run: the runs that are done, the settings that overrides lose, and why it would be refused."""
    cells = sweep.cells()
    if num_done := sum(sweep.is_done(cell) for cell in cells):
        yield f"{num_done} of {len(cells)} runs are done in {sweep.folder}, {len(cells) - num_done} are left to run"
    yield from lost_overrides(sweep)
    yield from refused_arms(sweep).values()
    try:
        check_place(sweep)
    except ConfigError as error:
        yield f"it would be refused: {error}"
        return
    arms_by_need: dict[str, list[str]] = {}
    for cell in first_of_each_arm(cells):
        arms_by_need.setdefault(memory_in_words(sweep.config(cell)), []).append(cell.arm)
    for need, arms in arms_by_need.items():
        if need:
            yield need if len(arms_by_need) == 1 else f"{', '.join(arms)}: {need}"


@dataclass
class RunningCell:
    """A run in progress."""

    cell: Cell
    process: subprocess.Popen[bytes]
    num_signals: int = 0
    """Sent so far: the first asks the run to end after the current step, the second to abandon it."""
    record: Mapping[str, Any] | None = None
    """The last line of its metrics that was seen."""

    def signal(self, *, up_to: int) -> None:
        """Sends the signals that it has not had, until it has had `up_to`; two kinds, as equal pending signals would merge."""
        for number in SIGNALS[self.num_signals : up_to]:
            self.process.send_signal(number)
            self.num_signals += 1

    def has_stepped(self, folder: Path) -> bool:
        """Whether it made a step with tokens since the last call; a resumed run steps first where it had stopped."""
        before, self.record = self.record, last_record(folder / METRICS)
        if self.record is None or self.record == before or not self.record["perf/policy_tokens"]:
            return False
        return before is None or self.record["step"] >= before["step"]


class SweepRunner:
    """The remaining runs of a sweep, side by side until they have ended."""

    POLL_S = 2.0

    def __init__(self, sweep: Sweep, interruption: Interruption) -> None:
        self.sweep, self.interruption = sweep, interruption
        self.left = [cell for cell in sweep.cells() if not sweep.is_done(cell)]
        self.running: list[RunningCell] = []
        self.failed: list[Cell] = []
        self.total = len(sweep.cells())
        self.began, self.done_before = time.monotonic(), self.runs_made()
        self.run_s: float | None = None
        """Seconds of a run by itself; None before the first step is over."""
        self.bar = tqdm(
            total=self.total, initial=self.done_before, bar_format="{bar:20} {desc}", leave=False, disable=not sys.stderr.isatty()
        )

    def run(self) -> list[Cell]:
        """Runs until everything is done, has failed, or the sweep is interrupted; returns the runs that failed.

        Raises:
            KeyboardInterrupt: it was interrupted twice; the runs have abandoned their steps and ended.
        """
        self.say(f"{self.sweep.folder}: {count(len(self.left), 'run')} to do, {self.progress}, {self.sweep.parallel} side by side")
        try:
            while (self.left or self.running) and not self.interruption.requested:
                self.start_runs()
                time.sleep(self.POLL_S)
                self.collect()
                self.show()
            self.stop_all()
        except BaseException:
            self.stop_all(abandon=True)
            raise
        finally:
            self.bar.close()
        if any(self.sweep.is_done(cell) for cell in self.sweep.cells()):
            try:
                self.say(self.compare())
            except (ValueError, OSError) as error:
                self.say(f"not compared: {error}")
        return self.failed

    def start_runs(self) -> None:
        """Starts runs whose needs are met, up to `parallel`; a single one before the first step is over."""
        while len(self.running) < (self.sweep.parallel if self.run_s is not None else 1):
            cell = next((cell for cell in self.left if all(self.sweep.is_done(need) for need in self.sweep.needs(cell))), None)
            if cell is None:
                if not self.running:
                    for other in self.left:
                        self.say(f"left out {other}: it replays a run that failed")
                    self.failed, self.left = self.failed + self.left, []
                return
            self.left.remove(cell)
            if self.run_s is None:
                policy = self.sweep.config(cell).policy
                builds = policy.is_embedded and not prior_folder(policy.prior).is_dir()
                self.say(
                    f"first {cell} alone, until its first step is over{'; it builds the prior, which takes minutes' if builds else ''}: "
                    f"its output is {self.sweep.output(cell)}"
                )
            before = last_record(self.sweep.run_folder(cell) / METRICS)
            self.running.append(RunningCell(cell, self.start(cell), record=before))

    def start(self, cell: Cell) -> subprocess.Popen[bytes]:
        """Starts a run as a process of a new session, which Ctrl-C in the terminal does not reach; runs side by side share the cores."""
        output, env = self.sweep.output(cell), dict(os.environ)
        output.parent.mkdir(parents=True, exist_ok=True)
        if self.sweep.parallel > 1:
            threads = max(len(os.sched_getaffinity(0)) // self.sweep.parallel, 1)
            env = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **env}
        with output.open("ab") as log:
            words = [sys.executable, "-m", "experiments", *self.sweep.words_for(cell)]
            return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)

    def collect(self) -> None:
        """Removes runs that have ended."""
        for item in [item for item in self.running if item.process.poll() is not None]:
            self.running.remove(item)
            if item.process.returncode == ExitCode.FINISHED:
                self.predict(item.cell)
                left = f", about {self.estimate()} left" if self.left or self.running else ""
                self.say(f"done {item.cell}: {self.sweep.closing_score(item.cell)} ({self.progress}{left})")
            elif not self.interruption.requested:
                self.failed.append(item.cell)
                self.say(f"FAILED {item.cell} ({item.process.returncode}): see {self.sweep.output(item.cell)}")

    @property
    def progress(self) -> str:
        """Runs that have ended well and that failed, in words."""
        num_done = self.total - len(self.left) - len(self.running) - len(self.failed)
        return f"{num_done} of {self.total} done" + (f", {len(self.failed)} failed" if self.failed else "")

    def show(self) -> None:
        """Moves the bar, and predicts the cost after the first step."""
        for item in self.running:
            if item.has_stepped(self.sweep.run_folder(item.cell)):
                self.predict(item.cell)
        made = self.runs_made()
        self.bar.set_description_str(f"{made / self.total:.0%} of the runs  {self.estimate()} left", refresh=False)
        self.bar.update(made - self.bar.n)

    def predict(self, cell: Cell) -> None:
        """Predicts once the cost of the rest, from the timing of a run's latest step."""
        step = last_record(self.sweep.run_folder(cell) / METRICS)
        if self.run_s is not None or step is None:
            return
        from experiments.evaluation import seconds_of_run  # here, so that a plan need not import torch

        parallel, took = self.sweep.parallel, as_clock(time.monotonic() - self.began)
        self.run_s = seconds_of_run(self.sweep.config(cell), step, num_tokens=step["perf/policy_tokens"] / step["step"])
        rest_s = self.run_s * self.runs_left()
        rest = as_clock(rest_s) if parallel == 1 else f"{as_clock(rest_s / parallel)} to {as_clock(rest_s)}"
        others = f", if the others cost what {cell.arm} does" if len(self.sweep.arms) > 1 else ""
        self.say(f"first step after {took}; about {rest} for the rest{others}")
        self.began, self.done_before = time.monotonic(), self.runs_made()

    def estimate(self) -> str:
        """Time that the rest takes, by the pace since the first step once a whole run was made, before that by that step."""
        if self.run_s is None:
            return "?"
        since = self.runs_made() - self.done_before
        pace_s = (time.monotonic() - self.began) / since if since >= 1.0 else self.run_s / self.sweep.parallel
        return as_clock(pace_s * self.runs_left())

    def runs_made(self) -> float:
        """Runs made so far, unfinished ones by the fraction of their budget."""
        return sum(map(self.fraction, self.sweep.cells()))

    def runs_left(self) -> float:
        """Runs still to be made, unfinished ones by the rest of their budget; not those that failed."""
        return sum(1.0 - self.fraction(cell) for cell in (*self.left, *(item.cell for item in self.running)))

    def fraction(self, cell: Cell) -> float:
        """Fraction of a run's budget that is used up, in [0, 1]."""
        if self.sweep.is_done(cell):
            return 1.0
        line = last_record(self.sweep.run_folder(cell) / METRICS)
        return 0.0 if line is None else min(self.sweep.budget.fraction(policy_tokens=line["perf/policy_tokens"], steps=line["step"]), 1.0)

    def stop_all(self, *, abandon: bool = False) -> None:
        """Asks the runs to finish and save their step, or to abandon it, and waits for them."""
        for item in self.running:
            item.signal(up_to=2 if abandon else 1)
        # Not `Popen.wait`, which sleeps through a signal that arrives just before it.
        while any(item.process.poll() is None for item in self.running):
            time.sleep(self.POLL_S)

    def compare(self) -> str:
        """Writes comparison.json over the runs that have ended, and describes it."""
        from analysis.compare import COMPARISON, as_text, compare, write_json  # here, because scipy takes a second to import
        from analysis.sweeps import read_sweep

        comparison = compare(read_sweep(self.sweep.folder), self.sweep.planned)
        write_json(comparison, self.sweep.folder / COMPARISON)
        return as_text(comparison)

    def say(self, text: str) -> None:
        """Prints a line; a closed terminal does not stop the sweep."""
        with contextlib.suppress(OSError):
            tqdm.write(text, file=sys.stderr)
