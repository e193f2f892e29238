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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from analysis.compare import COMPARISON, Plan, as_text, compare, write_json
from analysis.runs import CONFIG, METRICS, PROVENANCE, SUMMARY, last_record, read_config, read_run, read_summary, why_no_copy
from analysis.sweeps import read_sweep, run_folders, seed_of
from analysis.text import count
from experiments.config import ExperimentConfig, compose, laid_over, load_saved, parse_overrides, path_of, read_experiment, to_plain
from experiments.errors import ConfigError, refusing
from experiments.preflight import check, check_needs, check_teacher, check_writable, lost_settings
from experiments.resume import differences, other_users, relocated
from experiments.run_lock import SIGNALS, Interruption, check_no_writer
from experiments.sweep_plan import OWN, Cell, Sweep, read_sweep_file, unreached
from policy.prior import prior_folder
from simulator.files import ExitCode, as_clock
from simulator.settings import leaves, setting
from simulator.version import recorded_world, world_of

POLL_S = 2.0


class TornRun(ConfigError):
    """A run's folder cannot be read; the other runs of its sweep can go on."""


def run_sweep(sweep: Sweep) -> ExitCode:
    """Runs what is not done, and compares.

    Raises:
        ConfigError: an existing run has other settings or another world, or another process writes it.
    """
    for cell in sweep.cells():
        check_no_writer(sweep.run_folder(cell))
    if refused := refused_arms(sweep):
        rest = ",".join(arm for arm in sweep.arms if arm not in refused)
        raise ConfigError(" ".join(refused.values()) + (f" Or leave them out: arms={rest}" if rest else ""))
    torn = torn_runs(sweep)
    check_place(sweep)
    keep_plan(sweep)
    for sentence in (*lost_overrides(sweep), *torn.values()):
        print(sentence, file=sys.stderr)
    failed: list[Cell] = []
    with Interruption() as interruption, contextlib.suppress(KeyboardInterrupt):
        failed = SweepRunner(sweep, interruption, torn=torn).run()
    if interruption.requested:
        with contextlib.suppress(OSError):
            print(f"interrupted; the same command resumes the sweep in {sweep.folder}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if failed else ExitCode.FINISHED


def run_cell(sweep: Sweep, cell: Cell) -> ExitCode:
    """Runs one cell in this process, from the start or from its newest checkpoint.

    Raises:
        ConfigError: it cannot work, or replays a run that has not ended.
    """
    from experiments.run import run

    for need in sweep.needs(cell):
        if not sweep.is_done(need):
            first = f"python -m experiments {shlex.join(words_of(sweep, need))}"
            raise ConfigError(f"{cell} replays {need}, which must have ended before; run that first: {first}")
    folder = sweep.run_folder(cell)
    resuming = (folder / CONFIG).is_file()
    check_same_run(sweep, cell)
    if sweep.is_done(cell):
        print(f"{folder} has ended: {closing_score(sweep, cell)}", file=sys.stderr)
        return ExitCode.FINISHED
    config = resumed_config(sweep, cell) if resuming else sweep.config(cell)
    if not resuming and folder.is_dir():
        folder.rmdir()  # empty, or check_same_run refuses it
    check(config, folder, resuming=resuming)
    keep_plan(sweep)
    config.name = folder.name
    return run(config, folder, to_resume=shlex.join(words_of(sweep, cell)))


def resumed_config(sweep: Sweep, cell: Cell) -> ExperimentConfig:
    """The settings of a run that is resumed, with the paths of now."""
    folder, wanted = sweep.run_folder(cell), sweep.config(cell)
    config = load_saved(folder / CONFIG, [f"resume={folder}", *sweep.resume_words(cell)])
    # check_same_run holds the teachers equal but for the path of a trace.
    config.runs, config.teacher = wanted.runs, wanted.teacher
    return config


def keep_plan(sweep: Sweep) -> None:
    """Writes the planned comparison into the sweep's folder.

    Raises:
        ConfigError: the sweep was begun with another plan.
    """
    with refusing():
        sweep.planned.refuse_other(sweep.folder)
        sweep.planned.keep(sweep.folder)


def check_same_run(sweep: Sweep, cell: Cell) -> None:
    """Refuses an existing run that is not the one that this sweep would make.

    Raises:
        TornRun: it cannot be read.
        ConfigError: it has another world, users or settings.
    """
    folder = sweep.run_folder(cell)
    if not (folder / CONFIG).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise TornRun(f"{cell} has no {CONFIG}; delete {folder} to run it again")
        return
    try:
        written = read_config(folder / CONFIG)
        began_in = recorded_world(written.get(PROVENANCE) or {}, written)
    except ValueError as error:
        raise TornRun(f"{cell} cannot be read: {error}; delete {folder} to run it again") from error
    another = "take another name= for the sweep"
    try:
        saved = to_plain(load_saved(folder / CONFIG))
    except ValueError as error:
        raise ConfigError(f"{folder / CONFIG} is of another version: {error}; {another}") from error
    if began_in != (world := world_of(sweep.config(cell).simulator)):
        raise ConfigError(f"{folder} was run in world {began_in}, this is {world}; {another}")
    if other := other_users(written, sweep.config(cell)):
        raise ConfigError(f"{folder} was run with other users: {other}; or {another}")
    # All runs together may have been moved.
    if found := next(differences(relocated(saved, str(saved["runs"]), str(sweep.runs)), sweep.config(cell)), None):
        name, before, now = found
        raise ConfigError(f"{folder} was run with {name}={before!r}, this sweep wants {now!r}; {another}")
    try:
        reason = why_no_copy(read_run(folder)) if (folder / METRICS).is_file() else ""
    except (ValueError, OSError) as error:
        raise TornRun(f"{cell} cannot be read: {error}; delete {folder} to run it again") from error
    if reason:
        raise ConfigError(f"{cell} cannot be used: {reason}; delete {folder} for that")


def torn_runs(sweep: Sweep) -> dict[Cell, str]:
    """By run whose folder cannot be read, why.

    Raises:
        ConfigError: an existing run, requested or not, is not the one that the sweep would make.
    """
    asked = dict.fromkeys(sweep.cells())
    existing = run_folders(sweep.folder) if sweep.folder.is_dir() and any(sweep.folder.glob("*/seed_*")) else []
    begun = [Cell(folder.parent.name, seed_of(folder)) for folder in existing]
    torn, whole = {}, sweep.whole()
    for cell in dict.fromkeys([*asked, *(cell for cell in begun if cell.arm in sweep.file_arms)]):
        try:
            check_same_run(whole, cell)
        except TornRun as error:
            if cell in asked:
                torn[cell] = str(error)
    return torn


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


def check_place(sweep: Sweep) -> None:
    """Refuses a sweep whose first remaining run could not be written or lacks something on this machine."""
    check_writable(sweep.folder, called="runs")
    first = next((cell for cell in sweep.cells() if not sweep.is_done(cell)), None)
    if first is not None:
        check_needs(sweep.config(first))


def lost_overrides(sweep: Sweep) -> list[str]:
    """Notes on overrides that some arms do not take, and on settings of the file that another kind loses."""
    given = {name: value for name, value in parse_overrides(sweep.words).items() if name not in OWN}
    missed = [
        f"{name}={setting(given, name)} does not reach {', '.join(arms)}, which set it themselves or have another kind"
        for name, arms in unreached(sweep.base, sweep.arms, given).items()
    ]
    file = read_sweep_file(path_of(sweep.experiment))
    before = laid_over(read_experiment(file.base), file.settings or {})
    try:
        configs = [compose(base, {}, experiment=sweep.experiment) for base in (before, sweep.base)]
    except ConfigError:
        return missed  # only with an arm's settings is it a whole configuration
    return [*missed, *lost_settings(*configs, called=sweep.experiment)]


def foreseen(sweep: Sweep) -> Iterator[str]:
    """What a dry run says of a sweep: what is done, what overrides lose, and why it would be refused."""
    cells = sweep.cells()
    if num_done := sum(sweep.is_done(cell) for cell in cells):
        yield f"{num_done} of {len(cells)} runs are done in {sweep.folder}, {len(cells) - num_done} are left to run"
    yield from lost_overrides(sweep)
    yield from refused_arms(sweep).values()
    try:
        for cell in cells:
            check_no_writer(sweep.run_folder(cell))
        yield from torn_runs(sweep).values()
        with refusing():
            sweep.planned.refuse_other(sweep.folder)
        check_place(sweep)
    except ConfigError as error:
        yield f"it would be refused: {error}"


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
    """The remaining runs of a sweep, side by side until they have ended.

    Args:
        torn: runs that cannot be read, and count as failed.
    """

    def __init__(self, sweep: Sweep, interruption: Interruption, *, torn: Collection[Cell] = ()) -> None:
        self.sweep, self.interruption, self.torn = sweep, interruption, torn
        self.left = [cell for cell in sweep.cells() if not sweep.is_done(cell) and cell not in torn]
        self.running: list[RunningCell] = []
        self.failed: list[Cell] = [*torn]
        self.began, self.done_before = time.monotonic(), self.runs_made()
        self.run_s: float | None = None
        """Seconds of a run by itself; None before the first step is over."""
        self.total = len(sweep.cells())
        self.bar = tqdm(
            total=self.total, initial=self.done_before, bar_format="{bar:20} {desc}", leave=False, disable=not sys.stderr.isatty()
        )

    def run(self) -> list[Cell]:
        """Runs until everything is done, has failed, or the sweep is interrupted; returns the runs that failed.

        Raises:
            KeyboardInterrupt: it was interrupted twice; the runs have abandoned their steps and ended.
        """
        to_do = f"{count(len(self.left), 'run')} to do, {self.num_done} done{self.and_failed()}"
        self.say(f"{self.sweep.folder}: {to_do}, {self.sweep.parallel} side by side")
        try:
            while (self.left or self.running) and not self.interruption.requested:
                self.start_runs()
                time.sleep(POLL_S)
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
                self.say(compare_arms(self.sweep))
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
                    f"its output is {output_of(self.sweep, cell)}"
                )
            before = last_record(self.sweep.run_folder(cell) / METRICS)
            self.running.append(RunningCell(cell, start(self.sweep, cell), record=before))

    def collect(self) -> None:
        """Removes runs that have ended."""
        for item in [item for item in self.running if item.process.poll() is not None]:
            self.running.remove(item)
            if item.process.returncode == ExitCode.FINISHED:
                self.predict(item.cell)
                left = f", about {self.estimate()} left" if self.left or self.running else ""
                progress = f"{self.num_done} of {self.total}{self.and_failed()}{left}"
                self.say(f"done {item.cell}: {closing_score(self.sweep, item.cell)} ({progress})")
            elif not self.interruption.requested:
                self.failed.append(item.cell)
                self.say(f"FAILED {item.cell} ({item.process.returncode}): see {output_of(self.sweep, item.cell)}")

    @property
    def num_done(self) -> int:
        """Runs that have ended well."""
        return self.total - len(self.left) - len(self.running) - len(self.failed)

    def and_failed(self) -> str:
        """The number of failed runs, if any."""
        return f", {len(self.failed)} failed" if self.failed else ""

    def show(self) -> None:
        """Moves the bar, and predicts the cost after the first step."""
        for item in self.running:
            if item.has_stepped(self.sweep.run_folder(item.cell)):
                self.predict(item.cell)
        made = self.runs_made()
        self.bar.set_description_str(f"{made / self.total:.0%} of the runs  {self.estimate()} left", refresh=False)
        self.bar.update(made - self.bar.n)

    def predict(self, cell: Cell) -> None:
        """Predicts once what the rest costs, from the timing of a run's latest step."""
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
        return sum(self.fraction(cell) for cell in self.sweep.cells() if cell not in self.torn)

    def runs_left(self) -> float:
        """Runs still to be made, unfinished ones by what is left of their budget; not those that failed."""
        return sum(1.0 - self.fraction(cell) for cell in (*self.left, *(item.cell for item in self.running)))

    def fraction(self, cell: Cell) -> float:
        """Fraction of a run's budget that is used up, in [0, 1]."""
        if self.sweep.is_done(cell):
            return 1.0
        line = last_record(self.sweep.run_folder(cell) / METRICS)
        return 0.0 if line is None else min(self.sweep.budget.fraction(policy_tokens=line["perf/policy_tokens"], steps=line["step"]), 1.0)

    def stop_all(self, *, abandon: bool = False) -> None:
        """Asks the runs to end, and waits for them.

        Args:
            abandon: the current step, which is otherwise finished and saved.
        """
        for item in self.running:
            item.signal(up_to=2 if abandon else 1)
        # Not `Popen.wait`, which sleeps through a signal that arrives just before it.
        while any(item.process.poll() is None for item in self.running):
            time.sleep(POLL_S)

    def say(self, text: str) -> None:
        """Prints a line; a closed terminal does not stop the sweep."""
        with contextlib.suppress(OSError):
            tqdm.write(text, file=sys.stderr)


def start(sweep: Sweep, cell: Cell) -> subprocess.Popen[bytes]:
    """Starts a run as a process of a new session, which Ctrl-C in the terminal does not reach; runs side by side share the cores."""
    output = output_of(sweep, cell)
    output.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "experiments", *words_of(sweep, cell)]
    env = dict(os.environ)
    if sweep.parallel > 1:
        threads = max(len(os.sched_getaffinity(0)) // sweep.parallel, 1)
        env = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **env}
    with output.open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)


def words_of(sweep: Sweep, cell: Cell) -> list[str]:
    """The words after `python -m experiments` for one run of the sweep."""
    return [sweep.experiment, *sweep.words, "--cell", cell.arm, str(cell.seed)]


def output_of(sweep: Sweep, cell: Cell) -> Path:
    """The file of a run's printed output."""
    return sweep.folder / cell.arm / f"seed_{cell.seed}.txt"


def compare_arms(sweep: Sweep) -> str:
    """Writes comparison.json over the runs that have ended, and describes it."""
    plan = Plan(contrasts=sweep.planned.contrasts, primary=sweep.planned.primary, threshold=sweep.planned.threshold)
    comparison = compare(read_sweep(sweep.folder), plan)
    write_json(comparison, sweep.folder / COMPARISON)
    return as_text(comparison)


def closing_score(sweep: Sweep, cell: Cell) -> str:
    """The held-out score of a finished run, as text."""
    summary = dict(leaves(read_summary(sweep.run_folder(cell) / SUMMARY) or {}))
    score, area = summary.get("heldout.score"), summary.get("heldout.auc")
    if score is None:
        return "no held-out score"
    return f"held-out {score:.1f}" + ("" if area is None else f", over the run {area:.1f}")
