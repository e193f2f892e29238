"""The commands of this package: `python -m experiments <EXPERIMENT> [setting=value ...]`, `evaluate AGENT`, `reliability AGENT`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import ConfigError, checked_name
from simulator.files import ended

if TYPE_CHECKING:
    from experiments.config import ExperimentConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs an experiment, lists them, or prints a plan; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Threads sleep at barriers: by default they spin, which takes a core from other processes. Before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if arguments[:1] in (["evaluate"], ["reliability"]):
        from experiments.agents.agent import agent_parser

        options = agent_parser(arguments[0]).parse_args(arguments[1:])
        if arguments[0] == "evaluate":
            from experiments.agents.evaluate import evaluate

            return evaluate(options)
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
    """Lists the experiments, or plans or runs one of them, a sweep, or one run of a sweep."""
    from experiments import config as settings

    if options.experiment is None:
        for name, path in settings.experiments().items():
            first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
            print(f"{name:<24}{first.lstrip('# ')}")
        return 0
    from analysis.runs import CONFIG, RUNS
    from experiments.preflight import check

    if settings.is_sweep(options.experiment):
        from experiments import sweep as sweeps
        from experiments.sweep_plan import load_sweep

        sweep = load_sweep(options.experiment, options.overrides)
        if options.cell is None:
            if not options.dry_run:
                return sweeps.run_sweep(sweep)
            print("\n".join([sweep.describe(), *(f"# {sentence}" for sentence in sweeps.foreseen(sweep))]), flush=True)
            return 0
        cell = sweep.cell(*options.cell)
        if not options.dry_run:
            return sweeps.run_cell(sweep, cell)
        config, folder = sweep.config(cell), sweep.run_folder(cell)
        sweeps.check_same_run(sweep, cell)
        if sweep.is_done(cell):
            print(f"# {folder} has ended: {sweep.closing_score(cell)}")
            return 0
        config.resume = str(folder) if (folder / CONFIG).is_file() else ""
        check(config, folder, resuming=bool(config.resume), asks_teacher=not sweep.needs(cell))
    elif options.cell:
        raise ConfigError(f"--cell needs a sweep, got {options.experiment!r}, which is a single run")
    else:
        given = settings.parse_overrides(options.overrides)
        if given.get("resume"):
            from experiments.resume import resumed_folder

            folder = resumed_folder(options.experiment, str(given["resume"]), runs=str(given.get("runs", RUNS)))
            config = settings.load_saved(folder / CONFIG, options.overrides)
        else:
            config = settings.load(options.experiment, options.overrides)
            if config.resume:
                raise ConfigError(f"resume must be given with the command and not in an experiment's file, got {config.resume!r} there")
            name = config.name or f"seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
            folder = Path(config.runs) / config.experiment / checked_name(name)
        check(config, folder, resuming=bool(config.resume))
        config.name = folder.name
    if options.dry_run:
        print(plan(config, folder))
        return 0
    from experiments.run import run

    return run(config, folder)


def plan(config: ExperimentConfig, folder: Path) -> str:
    """The course of a run, and its settings."""
    from experiments.config import to_yaml
    from experiments.preflight import memory_in_words, warnings

    limit = f" or {config.budget.steps} steps" if config.budget.steps else ""
    return "\n".join(
        [
            f"# {'continues' if config.resume else 'would write'} {folder}",
            f"# trains {config.policy.model} by {config.algorithm.kind} on the {config.simulator.kind} user{served_words(config)}",
            f"# with tasks from the {config.teacher.kind} teacher, {config.groups_per_step} groups of {config.group_size} a step",
            f"# until {config.budget.policy_tokens:,} policy tokens{limit}",
            *([f"# {needed}"] if (needed := memory_in_words(config)) else []),
            *(f"# {warning}" for warning in warnings(config)),
            to_yaml(config),
        ]
    )


def served_words(config: ExperimentConfig) -> str:
    """Where the user's model comes from, if the run serves it."""
    from simulator.user import served_by_run

    if (user := served_by_run(config.simulator)) is None:
        return ""
    each = f"{user.serve_gpus:g} GPUs" if user.serve_gpus else f"{user.serve_cpus} CPU threads"
    return f", {user.serve} on {user.serve_engines} servers of its own with {each} each"


if __name__ == "__main__":
    sys.exit(main())
