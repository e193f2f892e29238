"""The door of this package: `python -m experiments <EXPERIMENT> [setting=value ...]`, `evaluate AGENT`, `reliability AGENT`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import ConfigError
from simulator.files import ended

if TYPE_CHECKING:
    from experiments.config import ExperimentConfig
    from experiments.sweep_plan import Sweep


AT_BARRIERS = ("OMP_WAIT_POLICY", "PASSIVE")
"""Threads that wait at a barrier sleep. By default they spin, which takes a core from whatever else runs on it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs an experiment, lists them, or says what would be run; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Before torch is imported, here and in the workers that inherit it.
    os.environ.setdefault(*AT_BARRIERS)
    if arguments[:1] == ["evaluate"]:
        from experiments.agents.options import evaluate_parser

        options = evaluate_parser().parse_args(arguments[1:])
        from experiments.agents.evaluate import evaluate

        return evaluate(options)
    if arguments[:1] == ["reliability"]:
        from experiments.agents.options import reliability_parser

        options = reliability_parser().parse_args(arguments[1:])
        from experiments.agents.reliability import reliability

        return reliability(options)
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Run an experiment. Without a name, list the experiments.",
        epilog="`evaluate AGENT` evaluates any agent, `reliability AGENT` says what training cost it (see their --help). "
        "What each experiment costs and found is in docs/experiments.md, all of it in docs/experiments/<name>.md.",
    )
    parser.add_argument("experiment", nargs="?", help="name of a YAML file in experiments/ or studies/*/, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="setting=value", help="dotted settings, e.g. teacher.kind=fixed budget.steps=10")
    parser.add_argument("--cell", nargs=2, metavar=("ARM", "SEED"), help="of a sweep, only this run of it, in this process")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the resolved settings, and start nothing")
    options = parser.parse_intermixed_args(arguments)

    return ended(lambda: dispatch(options), refused=ConfigError, if_interrupted="interrupted before a run began")


def dispatch(options: argparse.Namespace) -> int:
    """Lists, plans or trains."""
    if options.experiment is None:
        from experiments.config import experiments

        print("\n".join(f"{name:<24}{idea}" for name, idea in experiments().items()))
        return 0

    from analysis.runs import CONFIG, RUNS
    from experiments import config as settings
    from experiments import preflight
    from experiments.sweep_plan import is_sweep

    if is_sweep(options.experiment):
        return dispatch_sweep(options)
    if options.cell:
        raise ConfigError(f"--cell needs a sweep, got {options.experiment!r}, which is a single run")
    given = settings.parse_overrides(options.overrides)
    if given.get("resume"):
        # What else was said is about the run that is there, whose teacher or user may be of another kind than the file's.
        folder = preflight.resumed_folder(options.experiment, str(given["resume"]), runs=str(given.get("runs", RUNS)))
        config = settings.load_saved(folder / CONFIG, options.overrides)
    else:
        config = settings.load(options.experiment, options.overrides)
        if config.resume:
            raise ConfigError(f"resume must be given with the command and not in an experiment's file, got {config.resume!r} there")
        folder = preflight.new_folder(config)
    preflight.check(config, folder, resuming=bool(config.resume))
    config.name = folder.name
    if options.dry_run:
        print(plan(config, folder))
        return 0

    from experiments.run import run

    return run(config, folder)


def dispatch_sweep(options: argparse.Namespace) -> int:
    """Plans a sweep, runs it, or runs one cell of it."""
    from analysis.runs import CONFIG
    from experiments.sweep_plan import describe, load_sweep

    sweep = load_sweep(options.experiment, options.overrides)
    cell = sweep.cell(*options.cell) if options.cell else None
    if options.dry_run and cell:
        from experiments.preflight import check_start
        from experiments.sweep import closing_score, refuse_other

        config, folder = sweep.config(cell), sweep.run_folder(cell)
        resuming = (folder / CONFIG).is_file()
        refuse_other(sweep, cell)
        if sweep.is_done(cell):
            print(f"# {folder} has ended: {closing_score(sweep, cell)}")
            return 0
        check_start(config, folder, resuming=resuming, asks_teacher=not sweep.needs(cell))
        config.resume = str(folder) if resuming else ""
        print(plan(config, folder))
        return 0
    if options.dry_run:
        print(describe(sweep), flush=True)
        for sentence in foreseen(sweep):
            print(f"# {sentence}", flush=True)
        return 0

    from experiments.sweep import run_arm, run_sweep

    return run_arm(sweep, cell) if cell else run_sweep(sweep)


def foreseen(sweep: Sweep) -> Iterator[str]:
    """What else is known of a sweep before it is run: what is done, what it loses, and why it would be refused."""
    from experiments.errors import refusing
    from experiments.sweep import check_no_writers, check_place, lost_by_words, refused_arms, torn_runs

    cells = sweep.cells()
    num_done = sum(sweep.is_done(cell) for cell in cells)
    if num_done:
        yield f"{num_done} of {len(cells)} runs are done in {sweep.folder}, {len(cells) - num_done} are left to run"
    yield from lost_by_words(sweep)
    yield from refused_arms(sweep).values()
    try:
        check_no_writers(sweep)
        yield from torn_runs(sweep).values()
        with refusing():
            sweep.planned.refuse_other(sweep.folder)
        check_place(sweep)
    except ConfigError as error:
        yield f"it would be refused: {error}"


def plan(config: ExperimentConfig, folder: Path) -> str:
    """What would happen, and with which settings."""
    from experiments.config import to_yaml
    from experiments.preflight import cautions

    limit = f" or {config.budget.steps} steps" if config.budget.steps else ""
    return "\n".join(
        [
            f"# {'continues' if config.resume else 'would write'} {folder}",
            f"# trains {config.policy.model} by {config.algorithm.kind} on the {config.simulator.kind} user",
            f"# with tasks from the {config.teacher.kind} teacher, {config.groups_per_step} groups of {config.group_size} a step",
            f"# until {config.budget.policy_tokens:,} policy tokens{limit}",
            *(f"# {caution}" for caution in cautions(config)),
            to_yaml(config),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
