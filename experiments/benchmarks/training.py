"""The optimiser step beside TRL's on the same batch of dialogues: tokens per second, and memory, each side in processes of its own.

One side of the training comparison in a process of its own: `python -m experiments.benchmarks.training ...` prints JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from experiments.benchmarks.figures import Figures, Settings, figure, ratios, real_batch
from policy.algorithms.algorithms import Grpo
from policy.batch import Batch
from policy.config import GrpoConfig, LearnerConfig
from policy.learner import Learner
from policy.model import load_model

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
    command = [sys.executable, "-m", "experiments.benchmarks.training", what, str(folder), "--sides", *sides]
    command += ["--repeats", str(settings.repeats), "--threads", str(settings.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{what} of {' and '.join(sides)} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


LARGE_VOCABULARY = 151_936
"""Qwen2.5's."""
SIDES = ("ours", "trl")
Step = Callable[[], object]


def make_step(side: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: Batch, *, micro_rows: int) -> Step:
    """One optimiser step on `batch`, to be called again and again."""
    algorithm = Grpo(GrpoConfig())
    targets = algorithm.targets(batch)
    if side == "ours":
        learner = Learner(LearnerConfig(micro_batch_rows=micro_rows), algorithm, model)
        return lambda: learner.update(batch, targets)
    from experiments.benchmarks.trl_step import TrlStep

    trl = TrlStep(model, tokenizer, rows=batch.num_rollouts, micro_rows=micro_rows)
    return lambda: trl.update(batch, targets.advantages_BT)


def wide_model() -> PreTrainedModel:
    """A small Qwen2 with a vocabulary of a published size and random weights; its head is tied."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=LARGE_VOCABULARY, **sizes, max_position_embeddings=1024, tie_word_embeddings=True))


def speeds(folder: Path, sides: list[str], repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each side, in turn, padding not counted; a first step of each is not counted either."""
    _, tokenizer = load_model(folder)
    batch = real_batch(tokenizer)
    num_tokens = int(batch.needed_B.sum())
    steps = {side: make_step(side, load_model(folder)[0], tokenizer, batch, micro_rows=8) for side in sides}
    found: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(repeats + 1):
        for side, step in steps.items():
            started = time.perf_counter()
            step()
            if repeat:
                found[side].append(num_tokens / (time.perf_counter() - started))
    return found


def peaks(folder: Path, side: str, repeats: int, *, wide: bool) -> list[float]:
    """MiB that a first optimiser step takes beyond the model and the batch, each repeat in a process forked before any step was taken."""
    model, tokenizer = load_model(folder)
    batch = real_batch(tokenizer, num_groups=2 if wide else 8)
    step = make_step(side, wide_model() if wide else model, tokenizer, batch, micro_rows=4 if wide else 8)
    return [_peak_mb(step) for _ in range(repeats)]


def _peak_mb(step: Step) -> float:
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            step()
            grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
            os.write(writing, str(grown_kb / 1024).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    if not said:
        raise RuntimeError("the step whose memory is measured must succeed, got a child without an answer")
    return float(said)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "memory", "wide-memory"))
    parser.add_argument("folder", type=Path, help="the policy's")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["ours"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "speed":
        found = speeds(options.folder, options.sides, options.repeats)
    else:
        (side,) = options.sides
        found = {side: peaks(options.folder, side, options.repeats, wide=options.what == "wide-memory")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
