"""`make bench-gpu`: an update and rollouts of a Qwen2.5-shaped model with random weights, in bf16, on one GPU; bench_gpu.json.

Tokens per second, model FLOP utilisation and memory against the necessary. The update is `policy.learner`'s with `learner.autocast` and
float32 weights, the engines are those of rollouts. On a CPU it runs with --size tiny, as a test does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from experiments.agents.options import at_least
from simulator.files import ExitCode, write_whole
from simulator.options import finite

SIZES = ("tiny", "0.5b", "1.5b", "3b", "7b")
ENGINES = ("hf", "vllm")


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench_gpu", description=__doc__)
    positive = at_least(1)
    parser.add_argument("--size", choices=SIZES, default="0.5b", help="of the model, by Qwen2.5's names")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu for --size tiny alone")
    parser.add_argument("--rows", type=positive, default=64, help="dialogues of an update, and replies sampled at once")
    parser.add_argument("--tokens", type=at_least(4), default=1024, help="of each dialogue; half of them are trained on")
    parser.add_argument("--micro-tokens", type=positive, default=16384, help="learner.micro_batch_tokens")
    parser.add_argument("--logit-chunk-mb", type=positive, default=256, help="learner.logit_chunk_mb")
    parser.add_argument("--checkpointing", action="store_true", help="learner.gradient_checkpointing")
    parser.add_argument("--new-tokens", type=positive, default=128, help="of each reply")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="that rolls out; may be given again, default: both")
    parser.add_argument("--no-update", action="store_true", help="rollouts alone")
    parser.add_argument("--repeats", type=positive, default=5, help="of every figure")
    parser.add_argument("--peak-tflops", type=finite, help="of the card in dense bf16, where it is not known by its name")
    parser.add_argument("--out", type=Path, default=Path("bench_gpu.json"))
    options = parser.parse_args(arguments)
    if options.micro_tokens < options.tokens:
        parser.error(f"--tokens must be at most --micro-tokens={options.micro_tokens}, got {options.tokens}")
    if options.device == "cpu" and options.size != "tiny":
        parser.error(f"--size must be tiny on a CPU, got {options.size}")
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        parser.error(f"--out must name a JSON file in a folder that exists, got {str(options.out)!r}")

    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("bench-gpu must run on a machine with CUDA, got none here; the same code runs small with --device cpu --size tiny")

    from experiments.benchmarks.gpu import measure

    text = json.dumps(measure(options), indent=1)
    write_whole(options.out, text + "\n")
    print(text)
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
