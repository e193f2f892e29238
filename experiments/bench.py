"""`make bench`: throughput, memory and overheads on this machine, each with its reference, to bench.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policy.config import EngineKind
from policy.prior import EMBEDDED
from simulator.files import ExitCode, ended, write_whole
from simulator.options import at_least

if TYPE_CHECKING:
    from experiments.benchmarks.figures import Figures

PARTS = {
    "simulator": ("simulator", "measure"),
    "teacher": ("simulator", "measure_teacher"),
    "training": ("training", "measure"),
    "ranks": ("training", "measure_ranks"),
    "mismatch": ("training", "measure_mismatch"),
    "rollouts": ("rollouts", "measure"),
    "driver": ("rollouts", "measure_driver"),
    "slow_simulator": ("simulator", "measure_slow"),
}
"""Part -> module of experiments/benchmarks and its function, in the order of measurement."""
KEYS = {
    "rollouts.tokens_per_s": "tokens sampled in whole dialogues, 64 at once with the embedded user, per second; engine_process=true",
    "rollouts.ceiling_tokens_per_s": "the same prompts in one offline call of the same engine, tokens per second",
    "rollouts.ratio": "of the two, round by round; 0.85 is aimed at",
    "rollouts.engines.1": "tokens per second on one engine that shares its process with its users (engine_process=false)",
    "rollouts.engines.2": "tokens per second on two",
    "rollouts.in_process_ratio.1": "of that one engine to its own offline call, round by round",
    "rollouts.in_process_ratio.2": "of those two to theirs",
    "rollouts.two_over_one": "rollouts.engines.2 over rollouts.engines.1, a ratio of medians, not of rounds; 1.6 is aimed at",
    "slow_simulator.vs_serial": "throughput with users as slow as a model, over calling them one after the other; 15 is aimed at",
    "slow_simulator.vs_lockstep": "the same over turns in lockstep; 1.8 is aimed at",
    "training.tokens_per_s": "tokens read by an optimiser step on 64 dialogues, padding not counted, per second",
    "training.trl_tokens_per_s": "TRL's GRPO step on the same batch",
    "training.ratio": "of the two, step by step; 1.5 is aimed at",
    "training.peak_mb": "MiB that an optimiser step takes beyond model and batch",
    "training.trl_peak_mb": "TRL's on the same batch",
    "training.large_vocab.peak_mb": "MiB with a vocabulary of 152 thousand, 16 dialogues",
    "training.large_vocab.trl_peak_mb": "TRL's on the same batch; twice ours is aimed at",
    "ranks.replicas_over_one": "tokens per second of two learner ranks over one process on as many threads, step by step",
    "ranks.sharded_over_one": "the same of two ranks that hold half of the model each",
    "weights.sync_s": "seconds from a trainer's tensors to the acknowledgement of two engines",
    "driver.cpu_ms_per_dialogue": "milliseconds of CPU time of the driver per dialogue that comes back",
    "driver.kb_per_dialogue": "KiB of it on the way",
    "driver.cpu_ms_per_update": "milliseconds of CPU time of the driver per update of two engines with this policy",
    "driver.cpu_ms_per_weight_mb": "milliseconds of CPU time of the driver per MiB of weights, for any number of engines",
    "mismatch.fp32_mean_abs": "nats between a float32 engine's logprobs and the trainer's; below 1e-5 is aimed at",
    "mismatch.bf16_mean_abs": "nats between a bfloat16 engine's and the float32 trainer's",
    "teacher.us_per_task": "microseconds of CPU time to propose a task and observe its outcome",
    "simulator.reactions_per_s": "answers of the embedded user to scripted agents, per second of one core",
}
"""Dotted key of bench.json -> its meaning."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the requested parts, prints and writes them; a part that fails leaves its reason and does not stop the others."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part alone; may be given again")
    parser.add_argument("--repeats", type=at_least(1), default=5, help="of every figure; the median of 5 or more is worth quoting")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="the JSON file")
    parser.add_argument("--model", default=EMBEDDED, help="the embedded prior, or a Hugging Face folder or id")
    parser.add_argument("--engine", choices=("auto", "vllm", "hf"), default="auto")
    parser.add_argument("--threads", type=at_least(1), default=1, help="of the trainer and of each engine")
    options = parser.parse_args(arguments)
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        print(f"--out must name a JSON file in a folder that exists, got {str(options.out)!r}", file=sys.stderr)
        return ExitCode.REFUSED

    from experiments.benchmarks.figures import Settings

    settings = Settings(repeats=options.repeats, model=options.model, engine=EngineKind(options.engine), threads=options.threads)
    figures: Figures = dict.fromkeys(KEYS, "not measured: --only left it out")
    parts, failed = options.only or list(PARTS), False
    for number, part in enumerate(parts, start=1):
        print(f"[{number}/{len(parts)}] {part}", file=sys.stderr, flush=True)
        module, function = PARTS[part]
        try:
            figures |= getattr(importlib.import_module(f"experiments.benchmarks.{module}"), function)(settings)
        except Exception as error:  # noqa: BLE001 - the other parts are still worth measuring
            traceback.print_exc()
            failed = True
            reason = f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            # New weights are timed on the engines of the rollouts.
            sections = ("rollouts", "weights") if part == "rollouts" else (part,)
            figures |= {key: reason for key in KEYS if key.partition(".")[0] in sections}
    for key, figure in figures.items():
        value = figure if isinstance(figure, str) else f"{figure.median:.4g} [{figure.lowest:.4g}, {figure.highest:.4g}]"
        print(f"{key:<32}{value}   {KEYS[key]}")
    write_whole(options.out, json.dumps(document(figures), indent=1) + "\n")
    print(f"{options.out} written")
    return ExitCode.FAILED if failed else ExitCode.FINISHED


def document(figures: Figures) -> dict[str, Any]:
    """bench.json: every key a number, null where there is none; ranges under `spread` and reasons under `reasons`, by dotted key."""
    from experiments.run_folder import git_commit
    from policy.versions import versions

    assert figures.keys() == KEYS.keys(), f"figures must have the keys of the benchmark, got {figures.keys() ^ KEYS.keys()}"
    tree: dict[str, Any] = {
        "commit": git_commit(),
        "machine": {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine(), "system": platform.platform()},
        "versions": versions(),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": os.getloadavg()[0],
    }
    spread, reasons = {}, {}
    for key, found in figures.items():
        *sections, name = key.split(".")
        place = reduce(lambda place, section: place.setdefault(section, {}), sections, tree)
        if isinstance(found, str):
            place[name], reasons[key] = None, found
        else:
            place[name] = found.median
            spread[key] = {"min": found.lowest, "max": found.highest, "repeats": found.repeats}
    return {**tree, "spread": spread, "reasons": reasons}


if __name__ == "__main__":
    sys.exit(ended(main, refused=(), if_interrupted="interrupted: nothing was written"))
