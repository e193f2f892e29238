"""Efficiency and staleness of a rollout pool from 1 to 1,000 engines, by a model: `python -m policy pool_model --out FOLDER`."""

from __future__ import annotations

import csv
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.files import draft_of
from studies.pool_model.model import Engine, Result, Setting, simulate

NUM_ENGINES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1000)
EMBEDDED = Setting()
"""Measured; studies/speed/README.md unless it is said.

- `step_s`, `step_s_per_reply`: their ratio from CPU time of the embedded engine (calls of 1 to 128 requests), their size so that an offline
  call reaches the published 3,116 tokens/s.
- `reply_*`, `leave_prob`: 256 dialogues of the prior with the built-in user at strictness 0.35, 12.0 tokens a reply, 7.8 replies.
- `dialogue_s`, `task_s`, `engine_s`, `pack_s_per_mib`: "The driver". `dialogue_s_per_group`: 0.11 ms with 256 and 0.20 ms with 1,024 groups
  in flight, continued in a straight line.
- `load_s_per_mib`: 3 s for the 515 MiB of SmolLM2-135M on an H100, less packing. `load_s`: what is left of the embedded policy's 0.075 s.
- `update_s`: 6,000 tokens at 12,082 tokens/s. `restart_s`: an engine on a GPU starts in one to one and a half minutes (docs/cluster.md).
- `mib_per_s`, `failures_per_s`: assumed.
"""
LARGE = replace(
    EMBEDDED,
    step_s=10e-3,
    step_s_per_reply=0.12e-3,
    reply_tokens=250.0,
    reply_sigma=0.5,
    max_new_tokens=1000,
    user_s=2.0,
    user_sigma=0.69,
    weights_mib=5900.0,
    update_s=30.0,
)
"""1.5 billion parameters. An engine of 5,000 tokens/s when full, replies, the update, and users (99 % within 10 s) are assumed."""
AHEAD = replace(LARGE, max_staleness=1)
LARGER = replace(AHEAD, weights_mib=29000.0, update_s=60.0)
"""7 billion parameters, on engines as fast."""
SETTINGS = {
    "embedded": EMBEDDED,
    "embedded, 2 drivers": replace(EMBEDDED, num_drivers=2),
    "embedded, 1 ahead": replace(EMBEDDED, max_staleness=1),
    "1.5B": LARGE,
    "1.5B, 1 ahead": AHEAD,
    "1.5B, 1 ahead, tree": replace(AHEAD, spread="tree"),
    "1.5B, 1 ahead, tree, 2 drivers": replace(AHEAD, spread="tree", num_drivers=2),
    "1.5B, 1 ahead, tree, constant cost": replace(AHEAD, spread="tree", dialogue_s_per_group=0.0),
    "1.5B, 1 ahead, tree, failures": replace(AHEAD, spread="tree", failures_per_s=1 / 86400),
    "7B, 1 ahead": LARGER,
    "7B, 1 ahead, tree": replace(LARGER, spread="tree"),
    "7B, 1 ahead, tree, bfloat16": replace(LARGER, spread="tree", weights_mib=14500.0),
}
BLUE, GREEN, RED = "#08519c", "#238b45", "#b30000"
DRAWN = {
    "embedded": (BLUE, "-"),
    "embedded, 2 drivers": (BLUE, "--"),
    "embedded, 1 ahead": (BLUE, ":"),
    "1.5B": (GREEN, ":"),
    "1.5B, 1 ahead": (GREEN, "-"),
    "1.5B, 1 ahead, tree": (GREEN, "--"),
    "7B, 1 ahead": (RED, "-"),
    "7B, 1 ahead, tree": (RED, "--"),
}
"""Colour and line of the settings in the figure."""


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results.csv and scaling.svg go; must be there")
    parser.add_argument("--seed", type=int, default=0, help="of lengths, delays and failures (default 0)")


def run(args: Namespace) -> int:
    """Computes all settings, writes the table and the figure, prints the validation."""
    if not args.out.is_dir():
        print(f"error: --out must be a folder that is there, got {str(args.out)!r}", file=sys.stderr)
        return 2
    for name, values in (("dialogues over one offline call", offline_ratio), ("pool over turns in lockstep", gain_over_lockstep)):
        found = [values(seed=seed) for seed in range(args.seed, args.seed + 5)]
        print(f"{name}: {statistics.median(found):.2f} [{min(found):.2f}, {max(found):.2f}]")
    rows = list(table(seed=args.seed))
    with draft_of(args.out / "results.csv") as draft, draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, args.out / "scaling.svg")
    print(args.out)
    return 0


def result(name: str, num_engines: int, *, seed: int) -> Result:
    """A setting's run: twelve steps, or four where there are many engines."""
    return simulate(SETTINGS[name], num_engines, seed=seed, num_steps=12 if num_engines <= 64 else 4)


def row(name: str, num_engines: int, *, seed: int) -> dict[str, Any]:
    """A row of results.csv, numbers as text of four digits."""
    found = asdict(result(name, num_engines, seed=seed))
    shown = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in found.items()}
    return {"setting": name, "num_engines": str(num_engines), "seed": str(seed), **shown}


def table(*, seed: int) -> Iterator[dict[str, Any]]:
    """All rows, setting by setting."""
    for name in SETTINGS:
        yield from (row(name, num, seed=seed) for num in NUM_ENGINES)


def played(setting: Setting, num_dialogues: int, max_turns: int, *, seed: tuple[int, ...]) -> tuple[int, float]:
    """Tokens and seconds of one engine from its first reply to the end of its last dialogue."""
    engine = Engine(setting, seed=seed)
    engine.submit(0.0, 1, num_dialogues, max_turns=max_turns)
    engine.play(step=1)
    return engine.tokens[1], engine.clock


def offline_ratio(*, seed: int, num_rounds: int = 5) -> float:
    """Tokens per second of 64 dialogues with instant users on one engine over those of as many replies in one offline call."""
    num_replies = round(EMBEDDED.num_dialogues * sum(map(stay_prob, range(EMBEDDED.max_turns))))
    rates = []
    for num, max_turns in ((EMBEDDED.num_dialogues, EMBEDDED.max_turns), (num_replies, 1)):
        tokens, seconds = zip(*(played(EMBEDDED, num, max_turns, seed=(seed, i, max_turns)) for i in range(num_rounds)), strict=True)
        rates.append(sum(tokens) / sum(seconds))
    return rates[0] / rates[1]


def stay_prob(num_replies: int) -> float:
    """That a dialogue goes on after so many replies, fewer than it may have."""
    return float((1.0 - EMBEDDED.leave_prob) ** num_replies)


def gain_over_lockstep(*, seed: int, num_rounds: int = 5) -> float:
    """Tokens per second of 64 dialogues with slow users on two engines over those of turns in lockstep: a call of each, then all users."""
    slow, per_engine = replace(EMBEDDED, user_s=0.15, user_sigma=0.894), EMBEDDED.num_dialogues // 2
    totals = np.zeros((2, 2))  # pool and lockstep; tokens and seconds
    for number in range(num_rounds):
        pool = [played(slow, per_engine, slow.max_turns, seed=(seed, number, i)) for i in range(2)]
        totals[0] += sum(tokens for tokens, _ in pool), max(seconds for _, seconds in pool)
        rng = np.random.default_rng((seed, number))
        for turn in range(slow.max_turns):
            num_left = round(per_engine * stay_prob(turn))
            calls = [played(EMBEDDED, num_left, 1, seed=(seed, number, i, turn)) for i in range(2)]
            slowest_s = slow.user_s * rng.lognormal(0.0, slow.user_sigma, 2 * num_left).max()
            totals[1] += sum(tokens for tokens, _ in calls), max(seconds for _, seconds in calls) + slowest_s
    rates = totals[:, 0] / totals[:, 1]
    return float(rates[0] / rates[1])


def draw(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Efficiency, share of a step in which weights travel, load of the driver and age of trained tokens, over engines."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams |= {"svg.hashsalt": "pool_model", "svg.fonttype": "none", "font.size": 9}
    figure = Figure(figsize=(9.0, 5.2), layout="constrained")
    panels = list(figure.subplots(2, 2, sharex=True).flat)
    for name, (colour, line) in DRAWN.items():
        found = {
            int(row["num_engines"]): {key: float(value) for key, value in row.items() if key != "setting"}
            for row in rows
            if row["setting"] == name
        }
        columns = zip(*(_shown(row) for row in found.values()), strict=True)
        for axes, values in zip(panels, columns, strict=True):
            axes.plot(list(found), values, color=colour, linestyle=line, label=name)
    titles = [
        "tokens/s over engines that are always full",
        "share of a step in which weights travel",
        "share of time that the driver computes",
        "mean age of trained tokens, updates",
    ]
    for i, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        axes.set_title(title, fontsize=9)
        axes.set(xscale="log", ylim=(-0.02, 1.04), xticks=[1, 10, 100, 1000], xticklabels=["1", "10", "100", "1,000"])
        axes.set_xlabel("engines" if i >= 2 else "")
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    with draft_of(out) as draft:
        figure.savefig(draft, format="svg", metadata={"Date": None})


def _shown(row: dict[str, float]) -> tuple[float, float, float, float]:
    """A row's value in each panel."""
    step_s = row["rollout_s"] + row["update_s"] + row["weights_s"]
    return row["efficiency"], row["weights_s"] / step_s, row["driver_load"], row["age"]
