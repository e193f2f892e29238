"""The optimiser step beside TRL's on the same batch of dialogues: tokens per second, and memory, each side in processes of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.figures import Figures, Settings, figure, ratios

NO_TRL = "TRL is not installed; make setup-bench, then run again"


def measure(settings: Settings) -> Figures:
    """The two sides take turns in one process for speed; for memory each repeat is a process forked before its first step."""
    folder, has_trl = settings.folder(), importlib.util.find_spec("trl") is not None
    sides = ["ours", "trl"] if has_trl else ["ours"]
    keys = {"ours": "", "trl": "trl_"}
    settings.progress(f"tokens per second of {' and '.join(sides)}")
    speeds = _run("speed", folder, sides, settings)
    figures: Figures = {f"training.{keys[side]}tokens_per_s": figure(speeds[side]) for side in sides}
    if has_trl:
        figures["training.ratio"] = ratios(speeds["ours"], speeds["trl"])
    for what, group in (("memory", "training"), ("wide-memory", "training.large_vocab")):
        for side in sides:
            settings.progress(f"{what} of {side}")
            figures[f"{group}.{keys[side]}peak_mb"] = figure(_run(what, folder, [side], settings)[side])
    if not has_trl:
        missing = ("trl_tokens_per_s", "ratio", "trl_peak_mb", "large_vocab.trl_peak_mb")
        figures |= {f"training.{key}": NO_TRL for key in missing}
    return figures


def _run(what: str, folder: Path, sides: Sequence[str], settings: Settings) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "experiments.benchmarks.training_step", what, str(folder), "--sides", *sides]
    command += ["--repeats", str(settings.repeats), "--threads", str(settings.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{what} of {' and '.join(sides)} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))
