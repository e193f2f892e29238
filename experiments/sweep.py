"""What is known of a sweep before its first run: what its overrides lose, what is there already, and why it would be refused.

Runs a sweep: its runs side by side as processes of their own, each resumable, and the comparison as they come in.

What has a summary is done and what was broken off goes on from its newest checkpoint, so a sweep may take several sittings. The first
run goes alone until its first new step is over: it builds the prior that all share, and its pace says what the rest will cost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from analysis.compare import COMPARISON, Plan, as_text, compare, write_json
from analysis.runs import CONFIG, METRICS, PROVENANCE, SUMMARY, last_record, read_config, read_run, read_summary, setting, why_no_copy
from analysis.sweeps import read_sweep, run_folders, seed_of
from analysis.text import count
from experiments.build import check_teacher
from experiments.config import (
    BudgetConfig,
    ExperimentConfig,
    compose,
    laid_over,
    load_saved,
    parse_overrides,
    path_of,
    read_experiment,
    read_yaml,
    to_plain,
)
from experiments.errors import ConfigError, refusing
from experiments.evaluation import seconds_of_run
from experiments.preflight import check, check_needs, check_writable, lost_settings
from experiments.resume import differences, other_users, relocated
from experiments.run_folder import SIGNALS, Interruption, check_no_writer
from experiments.sweep_plan import OWN, Cell, Sweep, unreached
from policy.prior import prior_folder
from simulator.files import ExitCode, as_clock
from simulator.version import recorded_world, world_of

if TYPE_CHECKING:
    from experiments.sweep_plan import Cell, Sweep


class TornRun(ConfigError):
    """What lies in a run's folder cannot be read; the other runs of its sweep can go on."""


def refuse_other(sweep: Sweep, cell: Cell) -> None:
    """Raises when a run that is there is not the one this sweep would make.

    Raises:
        TornRun: it cannot be read.
        ConfigError: it is another one.
    """
    folder = sweep.run_folder(cell)
    if not (folder / CONFIG).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise TornRun(f"{cell} has no {CONFIG}: it was broken off before, or it was deleted; delete {folder} to run it anew")
        return
    try:
        written = read_config(folder / CONFIG)
        began_in = recorded_world(written.get(PROVENANCE) or {}, written)
        if not began_in:
            raise ValueError(f"{CONFIG} lacks {PROVENANCE}.world")
    except ValueError as error:
        raise TornRun(f"{cell} was broken off before its settings were written: {error}; delete {folder} to run it anew") from error
    try:
        saved = to_plain(load_saved(folder / CONFIG))
    except ValueError as error:
        raise ConfigError(
            f"{folder / CONFIG} cannot be taken up by this version: {error}; take another name= for the sweep, or the version that began it"
        ) from error
    if began_in != (world := world_of(sweep.config(cell).simulator)):
        raise ConfigError(f"{folder} was run in world {began_in}, this is {world}; take another name= for the sweep")
    if other := other_users(read_config(folder / CONFIG), sweep.config(cell)):
        raise ConfigError(f"{folder} was run with other users: {other}; or take another name= for the sweep")
    # Through the schema, so that a setting which did not exist then stands at its default; all runs together may have moved.
    if found := next(differences(relocated(saved, str(saved["runs"]), str(sweep.runs)), sweep.config(cell)), None):
        name, before, now = found
        raise ConfigError(f"{folder} was run with {name}={before!r}, this sweep wants {now!r}; take another name= for the sweep")
    try:
        reason = why_no_copy(read_run(folder)) if (folder / METRICS).is_file() else ""
    except (ValueError, OSError) as error:
        raise TornRun(f"{cell} cannot be read: {error}; delete {folder} to run it anew") from error
    if reason:
        raise ConfigError(f"{cell} cannot be used: {reason}; delete {folder} for that")


def check_no_writers(sweep: Sweep) -> None:
    """Refuses a sweep of which another process writes a run.

    Raises:
        ConfigError: there is one.
    """
    for cell in sweep.cells():
        check_no_writer(sweep.run_folder(cell))


def lost_by_words(sweep: Sweep) -> list[str]:
    """What its overrides lose of the file's settings, by choosing another algorithm or user, and which arms they do not reach."""
    given = {name: value for name, value in parse_overrides(sweep.words).items() if name not in OWN}
    missed = [
        f"{name}={setting(given, name)} does not go to {', '.join(arms)}, which set it themselves or have a kind of their own"
        for name, arms in unreached(sweep.base, sweep.arms, given).items()
    ]
    file = read_yaml(path_of(sweep.experiment))
    before = laid_over(read_experiment(file["base"]), file.get("settings") or {})
    try:
        configs = [compose(base, {}, experiment=sweep.experiment) for base in (before, sweep.base)]
    except ConfigError:
        # Without what only its arms say it is no whole configuration.
        return missed
    return [*missed, *lost_settings(*configs, called=sweep.experiment)]


def refused_arms(sweep: Sweep) -> dict[str, str]:
    """By arm that has runs to make, why its teacher cannot teach them here: known before hours are spent on the others.

    A teacher that copies another run is not asked: there is nothing to copy yet.
    """
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


def torn_runs(sweep: Sweep) -> dict[Cell, str]:
    """By run whose folder cannot be read, what is wrong with it; the others go on.

    Raises:
        ConfigError: a run that is there, asked for or not, is not the one that the sweep would make.
    """
    torn, whole = {}, sweep.whole()
    asked = dict.fromkeys(sweep.cells())
    for cell in (*asked, *begun_before(sweep)):
        try:
            refuse_other(whole, cell)
        except TornRun as error:
            if cell in asked:
                torn[cell] = str(error)
    return torn


def begun_before(sweep: Sweep) -> list[Cell]:
    """Runs in the sweep's folder that were not asked for now, of arms that the file has."""
    asked = set(sweep.cells())
    if not sweep.folder.is_dir():
        return []
    try:
        begun = [Cell(folder.parent.name, seed_of(folder)) for folder in run_folders(sweep.folder)]
    except ValueError:  # it holds no run yet
        return []
    return [cell for cell in begun if cell.arm in sweep.file_arms and cell not in asked]


def check_place(sweep: Sweep) -> None:
    """Refuses a sweep whose first run that is left could not be written or would not find its model, its users or its room here.

    Raises:
        ConfigError: as `check_writable` and `check_needs` do.
    """
    check_writable(sweep.folder, called="runs")
    first = next((cell for cell in sweep.cells() if not sweep.is_done(cell)), None)
    if first is not None:
        check_needs(sweep.config(first))


POLL_S = 2.0
SETTINGS = "ATTUNE_SETTINGS"
"""Environment variable with a digest of a run's settings, by which a sweep tells each run what to be: files may have changed since the
sweep read them."""


@dataclass
class Running:
    """A run that is going on."""

    cell: Cell
    process: subprocess.Popen[bytes]
    num_signals: int = 0
    """Sent to it so far: the first asks it to end after the step at hand, the second to abandon that."""
    record: Mapping[str, Any] | None = None
    """The last of its metrics when it was looked at last."""

    def signal(self, *, up_to: int) -> None:
        """Sends the signals that it has not had yet, until it has had `up_to`.

        Each is of another kind, because two pending signals of one kind arrive as one.
        """
        for number in SIGNALS[self.num_signals : up_to]:
            self.process.send_signal(number)
            self.num_signals += 1

    def has_stepped(self, folder: Path) -> bool:
        """Whether it has made a step since this was asked before; to go back to its checkpoint is none, nor is one without a token.

        Args:
            folder: of the run.
        """
        before, self.record = self.record, last_record(folder / METRICS)
        if self.record is None or self.record == before or not self.record["perf/policy_tokens"]:
            return False
        return before is None or self.record["step"] >= before["step"]


def run_sweep(sweep: Sweep) -> ExitCode:
    """Runs what is not done yet, and compares.

    Raises:
        ConfigError: a run that is there was begun with other settings or in another world, or another process still writes it.
    """
    check_no_writers(sweep)
    if refused := refused_arms(sweep):
        rest = ",".join(arm for arm in sweep.arms if arm not in refused)
        raise ConfigError(" ".join(refused.values()) + (f" Or go without: arms={rest}" if rest else ""))
    torn = torn_runs(sweep)
    check_place(sweep)
    keep_plan(sweep)
    for sentence in (*lost_by_words(sweep), *torn.values()):
        print(sentence, file=sys.stderr)
    failed: list[Cell] = []
    with Interruption() as interruption, contextlib.suppress(KeyboardInterrupt):
        failed = Sitting(sweep, interruption, torn=torn).run()
    if interruption.requested:
        with contextlib.suppress(OSError):
            print(f"interrupted; to go on, give the same command again ({sweep.folder} keeps what was done)", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if failed else ExitCode.FINISHED


def keep_plan(sweep: Sweep) -> None:
    """Leaves in the sweep's folder what it sets out to compare.

    Raises:
        ConfigError: the sweep was started with another plan.
    """
    with refusing():
        sweep.planned.refuse_other(sweep.folder)
        sweep.planned.keep(sweep.folder)


def run_arm(sweep: Sweep, cell: Cell) -> ExitCode:
    """Runs one cell in this process, from the start or from its newest checkpoint.

    Raises:
        ConfigError: it cannot work, or replays a run that has not ended.
    """
    from experiments.run import run

    expected, settings = os.environ.get(SETTINGS), digest_of(sweep.config(cell))
    if expected not in (None, settings):
        raise ConfigError(f"{cell} must have the settings that its sweep began with; a file of it was changed since: start the sweep again")
    for need in sweep.needs(cell):
        if not sweep.is_done(need):
            first = f"python -m experiments {shlex.join(words_of(sweep, need))}"
            raise ConfigError(f"{cell} replays {need}, which must have ended before; run that first: {first}")
    folder = sweep.run_folder(cell)
    resuming = (folder / CONFIG).is_file()
    refuse_other(sweep, cell)
    if sweep.is_done(cell):
        print(f"{folder} has ended: {closing_score(sweep, cell)}", file=sys.stderr)
        return ExitCode.FINISHED
    config = settings_to_go_on(sweep, cell) if resuming else sweep.config(cell)
    if not resuming and folder.is_dir():
        # Empty, or it would have been refused: killed between making the folder and writing into it.
        folder.rmdir()
    check(config, folder, resuming=resuming)
    keep_plan(sweep)
    config.name = folder.name
    return run(config, folder, to_go_on=shlex.join(words_of(sweep, cell)))


def settings_to_go_on(sweep: Sweep, cell: Cell) -> ExperimentConfig:
    """The settings of a run that goes on, wherever it and the others lie by now."""
    folder, wanted = sweep.run_folder(cell), sweep.config(cell)
    config = load_saved(folder / CONFIG, [f"resume={folder}", *sweep.for_resumed(cell)])
    # The teacher is the same (`refuse_other`), but for the place of a trace.
    config.runs, config.teacher = wanted.runs, wanted.teacher
    return config


class Sitting:
    """The runs of a sweep that are left, side by side until they have ended."""

    def __init__(self, sweep: Sweep, interruption: Interruption, *, torn: Collection[Cell] = ()) -> None:
        """
        Args:
            torn: runs that cannot be read, and count as failed.
        """
        self.sweep, self.interruption, self.torn = sweep, interruption, torn
        self.left = [cell for cell in sweep.cells() if not sweep.is_done(cell) and cell not in torn]
        self.running: list[Running] = []
        self.failed: list[Cell] = [*torn]
        self.budget = sweep.budget
        self.began, self.spent_before = time.monotonic(), self.spent()
        self.stepped: Cell | None = None
        """The run that was the first to make a step."""
        self.run_s: float | None = None
        """Seconds that a run takes where it goes alone; None before the first step is over."""
        self.total = len(sweep.cells())
        self.bar = tqdm(
            total=self.total, initial=self.spent_before, bar_format="{bar:20} {desc}", leave=False, disable=not sys.stderr.isatty()
        )

    def run(self) -> list[Cell]:
        """Until everything is done, has failed, or somebody interrupted; returns the runs that failed.

        Raises:
            KeyboardInterrupt: somebody did so twice; the runs under way have been told to abandon their steps, and have ended.
        """
        to_do = f"{count(len(self.left), 'run')} to do, {self.num_done} done{self.and_failed()}"
        self.say(f"{self.sweep.folder}: {to_do}, {self.sweep.parallel} side by side")
        try:
            while (self.left or self.running) and not self.interruption.requested:
                self.start_what_can()
                time.sleep(POLL_S)
                self.collect()
                self.show()
            self.stop_all()
        except BaseException:
            # Nobody is left who would wait for them: a run on its own would go on for as long as it takes.
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

    def start_what_can(self) -> None:
        """Starts runs whose needs are met, up to `parallel`; only one before the first step of all is over."""
        alone = self.run_s is None
        while len(self.running) < (1 if alone else self.sweep.parallel):
            cell = next((cell for cell in self.left if all(self.sweep.is_done(need) for need in self.sweep.needs(cell))), None)
            if cell is None:
                return self.give_up_on_the_impossible()
            self.left.remove(cell)
            if alone:
                self.say(goes_first(self.sweep, cell))
            before = last_record(self.sweep.run_folder(cell) / METRICS)
            self.running.append(Running(cell, start(self.sweep, cell), record=before))

    def give_up_on_the_impossible(self) -> None:
        """Counts runs as failed that wait for a run which failed."""
        if not self.running:
            self.failed += self.left
            for cell in self.left:
                self.say(f"left out {cell}: it replays a run that failed")
            self.left = []

    def collect(self) -> None:
        """Takes in processes that ended."""
        for item in [item for item in self.running if item.process.poll() is not None]:
            self.running.remove(item)
            if item.process.returncode == ExitCode.FINISHED:
                self.stepped = self.stepped or item.cell
                self.say(f"done {item.cell}: {closing_score(self.sweep, item.cell)} ({self.so_far()})")
            elif not self.interruption.requested:
                self.failed.append(item.cell)
                self.say(f"FAILED {item.cell} ({item.process.returncode}): see {output_of(self.sweep, item.cell)}")

    def so_far(self) -> str:
        """How many runs are done, and how long the rest takes as far as that is known."""
        left = f", about {self.estimate(self.spent())} left" if self.run_s is not None and (self.left or self.running) else ""
        return f"{self.num_done} of {self.total}{self.and_failed()}{left}"

    @property
    def num_done(self) -> int:
        """Runs that have ended well."""
        return self.total - len(self.left) - len(self.running) - len(self.failed)

    def and_failed(self) -> str:
        """How many have failed, where any did."""
        return f", {len(self.failed)} failed" if self.failed else ""

    def show(self) -> None:
        """The bar, and once, after the first step, what the rest will cost."""
        spent = self.spent()
        for item in self.running:
            if self.stepped is None and item.has_stepped(self.sweep.run_folder(item.cell)):
                self.stepped = item.cell
        if self.stepped is not None and self.run_s is None:
            self.tell_cost(self.stepped, spent)
        self.bar.set_description_str(f"{spent / self.total:.0%} of the runs  {self.estimate(spent)} left", refresh=False)
        self.bar.update(spent - self.bar.n)

    def tell_cost(self, cell: Cell, spent: float) -> None:
        """Says what the rest will cost, from the clock of the step that was just timed."""
        parallel, took = self.sweep.parallel, as_clock(time.monotonic() - self.began)
        step = last_record(self.sweep.run_folder(cell) / METRICS)
        assert step is not None, f"{cell} has made a step, which its metrics must hold"
        num_tokens = step["perf/policy_tokens"] / step["step"]
        self.run_s = seconds_of_run(self.sweep.config(cell), step, num_tokens=num_tokens)
        rest_s = self.run_s * self.rest()
        rest = f"about {as_clock(rest_s)} for the rest"
        if parallel > 1:
            rest = (
                f"{as_clock(rest_s / parallel)} to {as_clock(rest_s)} for the rest, as {parallel} runs slow each other down little or much"
            )
        others = f", if the others cost what {cell.arm} does" if len(self.sweep.arms) > 1 else ""
        self.say(f"first step after {took}; {rest}{others}")
        self.began, self.spent_before = time.monotonic(), spent

    def estimate(self, spent: float) -> str:
        """How long the rest takes: by the pace since the first step once a whole run was made since, before that by the first step."""
        if self.run_s is None:
            return "?"
        since = spent - self.spent_before
        pace = (time.monotonic() - self.began) / since if since >= 1.0 else self.run_s / self.sweep.parallel
        return as_clock(pace * self.rest())

    def spent(self) -> float:
        """How many runs have been made so far, begun ones by the share of their budget."""
        return sum(self.share(cell) for cell in self.sweep.cells() if cell not in self.torn)

    def rest(self) -> float:
        """How many runs are still to be made, begun ones by the share of their budget that is left; none of those that failed."""
        return sum(1.0 - self.share(cell) for cell in (*self.left, *(item.cell for item in self.running)))

    def share(self, cell: Cell) -> float:
        """How much of a run has been made, in [0, 1]."""
        return 1.0 if self.sweep.is_done(cell) else share_spent(self.sweep.run_folder(cell), self.budget)

    def stop_all(self, *, abandon: bool = False) -> None:
        """Asks what still runs to end, and waits for it.

        Args:
            abandon: the step at hand; else it is finished and saved.
        """
        for item in self.running:
            item.signal(up_to=2 if abandon else 1)
        # Not `Popen.wait`, which sleeps through a signal that comes just before it.
        while any(item.process.poll() is None for item in self.running):
            time.sleep(POLL_S)

    def say(self, text: str) -> None:
        """A line for the person, who may be gone with the terminal or the pipe: no run is abandoned for that."""
        with contextlib.suppress(OSError):
            tqdm.write(text, file=sys.stderr)


def goes_first(sweep: Sweep, cell: Cell) -> str:
    """Which run goes alone until its first step is over, why that may take long, and where it can be watched."""
    policy = sweep.config(cell).policy
    lacks_prior = policy.is_embedded and not prior_folder(policy.prior).is_dir()
    builds = "; it builds the prior, which the cache lacks and which takes minutes" if lacks_prior else ""
    return f"first {cell} alone, until its first step is over{builds}: how it goes is in {output_of(sweep, cell)}"


def start(sweep: Sweep, cell: Cell) -> subprocess.Popen[bytes]:
    """Starts a run as a process of its own, which Ctrl-C in the terminal does not reach."""
    output = output_of(sweep, cell)
    output.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "experiments", *words_of(sweep, cell)]
    env = {**shared_cores(sweep.parallel), SETTINGS: digest_of(sweep.config(cell))}
    with output.open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)


def digest_of(config: ExperimentConfig) -> str:
    """16 hex digits over the settings of a run."""
    return hashlib.sha256(json.dumps(to_plain(config), sort_keys=True, default=str).encode()).hexdigest()[:16]


def words_of(sweep: Sweep, cell: Cell) -> list[str]:
    """What follows `python -m experiments` for one run of the sweep, from the start or going on."""
    return [sweep.experiment, *sweep.words, "--cell", cell.arm, str(cell.seed)]


def shared_cores(parallel: int) -> Mapping[str, str]:
    """The environment in which so many runs leave each other room: an equal share of cores, and no spinning on them."""
    if parallel == 1:
        return os.environ
    threads = max(len(os.sched_getaffinity(0)) // parallel, 1)
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **os.environ}


def share_spent(folder: Path, budget: BudgetConfig) -> float:
    """How much of its budget a run has used up so far, of tokens or of steps, whichever is more; in [0, 1]."""
    line = last_record(folder / METRICS)
    if line is None:
        return 0.0
    return min(budget.spent(policy_tokens=line["perf/policy_tokens"], steps=line["step"]), 1.0)


def output_of(sweep: Sweep, cell: Cell) -> Path:
    """The file with what a run's process printed."""
    return sweep.folder / cell.arm / f"seed_{cell.seed}.txt"


def compare_arms(sweep: Sweep) -> str:
    """Writes comparison.json over the runs that have ended, and gives it in words."""
    plan = Plan(contrasts=sweep.planned.contrasts, primary=sweep.planned.primary, threshold=sweep.planned.threshold)
    comparison = compare(read_sweep(sweep.folder), plan)
    write_json(comparison, sweep.folder / COMPARISON)
    return as_text(comparison)


def closing_score(sweep: Sweep, cell: Cell) -> str:
    """The held-out score of a run that ended, in words."""
    summary = read_summary(sweep.run_folder(cell) / SUMMARY) or {}
    score, area = (setting(summary, f"heldout.{name}") for name in ("score", "auc"))
    if score is None:
        return "no held-out score"
    return f"held-out {score:.1f}" + ("" if area is None else f", over the run {area:.1f}")
