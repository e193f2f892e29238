"""The window of reward density at three moments of a run, and where tasks were issued: `python -m analysis window RUN --out FILE.svg`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np

from curriculum.frontier import FrontierTeacher
from curriculum.task import GroupOutcome, task_from_record
from experiments.config import load_saved
from simulator.files import check_out, draft_of

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


def replayed(folder: Path) -> list[tuple[FrontierTeacher, list[float]]]:
    """After each step of a run: a teacher that has learned from the outcomes so far, and the strictness of the step's tasks.

    Its curves are those of the run, because they follow from the outcomes alone.
    """
    records = [json.loads(line) for line in (folder / "teacher.jsonl").read_text(encoding="utf-8").splitlines()]
    tasks = {record["uid"]: task_from_record(record) for record in records if record["event"] == "task"}
    scenarios: dict[Any, list[str]] = {}
    for task in tasks.values():
        scenarios.setdefault(task.family, []).append(task.scenario_id)
    group_size = next(iter(tasks.values())).group_size
    teacher = FrontierTeacher(config_of(folder), scenarios=scenarios, group_size=group_size, seed=0)
    states = []
    for step in sorted({record["step"] for record in records}):
        of_step = [record for record in records if record["step"] == step]
        outcomes = [
            GroupOutcome(
                task=tasks[record["task"]],
                rewards=tuple([float("nan") if reward is None else reward for reward in record["rewards"]]),
                **{name: record[name] for name in ("successes", "num_tokens", "statuses")},
            )
            for record in of_step
            if record["event"] == "outcome" and isinstance(record["task"], str)
        ]
        teacher.learn(sorted((outcome for outcome in outcomes if len(outcome.surviving) >= 2), key=lambda outcome: outcome.task.uid))
        copy = FrontierTeacher(config_of(folder), scenarios=scenarios, group_size=group_size, seed=0)
        copy.load_state_dict(teacher.state_dict())
        states.append((copy, [tasks[record["uid"]].strictness for record in of_step if record["event"] == "task"]))
    return states


def config_of(folder: Path) -> Any:
    """The teacher's settings of a run."""
    return load_saved(folder / "config.yaml").teacher


def draw(folder: Path, out: Path) -> None:
    """Density over strictness after a sixth, a half and all of the run, and the tasks of the three steps around each."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams |= {"svg.hashsalt": "window", "svg.fonttype": "none"}
    states = replayed(folder)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for i, (share, colour) in enumerate(zip((1 / 6, 1 / 2, 1.0), COLOURS, strict=True)):
        at = max(round(share * len(states)) - 1, 0)
        teacher = states[at][0]
        a, log_b = teacher.ability.mode_2
        z_D, curve = np.exp(log_b) * (a - GRID_D), teacher.density
        values_D, sd_D = (np.interp(z_D, curve.GRID, column_Z) for column_Z in (curve.values_Z, curve.sd_Z))
        above.plot(GRID_D, values_D, color=colour, label=f"after step {at + 1}")
        above.fill_between(GRID_D, np.maximum(values_D - sd_D, 0.0), values_D + sd_D, color=colour, alpha=0.2, linewidth=0)
        issued = [d for _, strictness in states[max(at - 1, 0) : at + 2] for d in strictness]
        below.plot(issued, [2 - i] * len(issued), "|", color=colour, markersize=14)
    above.set(ylabel="reward density", ylim=(0.0, None))
    above.legend(frameon=False)
    below.set(xlabel="strictness", xlim=(0.0, 1.0), yticks=[2, 1, 0], yticklabels=["early", "middle", "late"], ylim=(-0.6, 2.6))
    below.set_title("tasks issued", fontsize=9)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    with draft_of(out) as draft:
        figure.savefig(draft, format=out.suffix.removeprefix("."), metadata={"Date": None} if out.suffix == ".svg" else None)
