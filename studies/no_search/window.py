"""The window of reward density at three moments of a run, and where tasks were issued: `python -m analysis window RUN --out FILE.svg`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.runs import TEACHER
from curriculum.frontier import FrontierConfig, FrontierTeacher
from curriculum.task import GroupOutcome, TaskSpec
from experiments.config import load_saved
from simulator.files import check_out, draft_of, read_lines

GRID_D = np.linspace(0.0, 1.0, 201)
COLOURS = ("#9ecae1", "#4292c6", "#08306b")  # early, middle, late


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("run", type=Path, help="folder of a run of the frontier teacher")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.svg", help="the picture, .svg or .png")


def run(args: Namespace) -> int:
    """Draws the figure and says where."""
    try:
        check_out(args.out)
        draw(args.run, args.out)
    except (ValueError, OSError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(args.out)
    return 0


class Moment(NamedTuple):
    """The teacher after a step, and the step's tasks."""

    density_D: np.ndarray
    """Reward density that is expected of the mean family on `GRID_D`."""
    sd_D: np.ndarray
    issued: list[float]
    """Strictness of the step's tasks."""


def replayed(folder: Path) -> list[Moment]:
    """A run step by step, by a teacher that learns from its outcomes: its curves are the run's, as they follow from outcomes alone.

    Raises:
        ValueError: the run had another teacher.
    """
    config = load_saved(folder / "config.yaml").teacher
    if not isinstance(config, FrontierConfig):
        raise ValueError(f"{folder} must be a run of teacher.kind=frontier, got {config.kind}")
    steps: dict[int, list[dict[str, Any]]] = {}
    for record in read_lines(folder / TEACHER):
        steps.setdefault(record["step"], []).append(record)
    tasks = {record["uid"]: TaskSpec.from_dict(record) for of_step in steps.values() for record in of_step if record["event"] == "task"}
    scenarios: dict[Any, list[str]] = {}
    for task in tasks.values():
        scenarios.setdefault(task.family, []).append(task.scenario_id)
    teacher = FrontierTeacher(config, scenarios=scenarios, group_size=next(iter(tasks.values())).group_size, seed=0)
    moments = []
    for of_step in steps.values():
        outcomes = [
            GroupOutcome(
                task=tasks[record["task"]],
                rewards=tuple(float("nan") if reward is None else reward for reward in record["rewards"]),
                **{name: record[name] for name in ("successes", "num_tokens", "statuses")},
            )
            for record in of_step
            if record["event"] == "outcome" and isinstance(record["task"], str)
        ]
        if learned := [outcome for outcome in outcomes if len(outcome.surviving) >= 2]:
            teacher.learn(sorted(learned, key=lambda outcome: outcome.task.uid))
        a, log_b = teacher.ability.mode_2
        z_D, curve = np.exp(log_b) * (a - GRID_D), teacher.density
        density_D, sd_D = (np.interp(z_D, curve.GRID, column_Z) for column_Z in (curve.values_Z, curve.sd_Z))
        moments.append(Moment(density_D, sd_D, [tasks[record["uid"]].strictness for record in of_step if record["event"] == "task"]))
    return moments


def draw(folder: Path, out: Path) -> None:
    """Density over strictness after a sixth, a half and all of the run, and the tasks of the three steps around each."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams |= {"svg.hashsalt": "window", "svg.fonttype": "none"}
    moments = replayed(folder)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for i, (share, colour) in enumerate(zip((1 / 6, 1 / 2, 1.0), COLOURS, strict=True)):
        at = max(round(share * len(moments)) - 1, 0)
        density_D, sd_D, _ = moments[at]
        above.plot(GRID_D, density_D, color=colour, label=f"after step {at + 1}")
        above.fill_between(GRID_D, np.maximum(density_D - sd_D, 0.0), density_D + sd_D, color=colour, alpha=0.2, linewidth=0)
        issued = [d for moment in moments[max(at - 1, 0) : at + 2] for d in moment.issued]
        below.plot(issued, [2 - i] * len(issued), "|", color=colour, markersize=14)
    above.set(ylabel="reward density", ylim=(0.0, None))
    above.legend(frameon=False)
    below.set(xlabel="strictness", xlim=(0.0, 1.0), yticks=[2, 1, 0], yticklabels=["early", "middle", "late"], ylim=(-0.6, 2.6))
    below.set_title("tasks issued", fontsize=9)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    with draft_of(out) as draft:
        figure.savefig(draft, format=out.suffix.removeprefix("."), metadata={"Date": None} if out.suffix == ".svg" else None)
