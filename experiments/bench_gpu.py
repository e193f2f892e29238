"""`make bench-gpu`: an update and rollouts of a Qwen2.5-shaped model with random weights, in bf16, on one GPU; bench_gpu.json.

Tokens per second, model FLOP utilisation and memory beside what is needed. The update is `policy.learner`'s with `learner.autocast` and
float32 weights, the engines are those of rollouts; nothing is made for this measurement alone. On a CPU it runs with --size tiny, as a
test does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simulator.files import ExitCode, write_whole
from simulator.options import finite

SIZES = ("tiny", "0.5b", "1.5b", "3b", "7b")
ENGINES = ("hf", "vllm")


def main(arguments: list[str] | None = None) -> int:
    """Measures what is asked for, prints it and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench_gpu", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="0.5b", help="of the model, by Qwen2.5's names")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu for --size tiny alone")
    parser.add_argument("--rows", type=int, default=64, help="dialogues of an update, and replies sampled at once")
    parser.add_argument("--tokens", type=int, default=1024, help="of each dialogue; half of them are trained on")
    parser.add_argument("--micro-tokens", type=int, default=16384, help="learner.micro_batch_tokens")
    parser.add_argument("--logit-chunk-mb", type=int, default=256, help="learner.logit_chunk_mb")
    parser.add_argument("--checkpointing", action="store_true", help="learner.gradient_checkpointing")
    parser.add_argument("--new-tokens", type=int, default=128, help="of each reply")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="that rolls out; may be given again, default: both")
    parser.add_argument("--no-update", action="store_true", help="rollouts alone")
    parser.add_argument("--repeats", type=int, default=5, help="of every figure")
    parser.add_argument("--peak-tflops", type=finite, help="of the card in dense bf16, where it is not known by its name")
    parser.add_argument("--out", type=Path, default=Path("bench_gpu.json"))
    options = parser.parse_args(arguments)
    for name in ("rows", "tokens", "micro_tokens", "logit_chunk_mb", "new_tokens", "repeats"):
        if getattr(options, name) < 1:
            print(f"--{name.replace('_', '-')} must be >= 1, got {getattr(options, name)}", file=sys.stderr)
            return ExitCode.REFUSED
    if options.tokens < 4 or options.micro_tokens < options.tokens:
        print(f"--tokens must be from 4 to --micro-tokens={options.micro_tokens}, got {options.tokens}", file=sys.stderr)
        return ExitCode.REFUSED
    if options.device == "cpu" and options.size != "tiny":
        print(f"--size must be tiny on a CPU, got {options.size}", file=sys.stderr)
        return ExitCode.REFUSED
    if options.out.is_dir() or not options.out.absolute().parent.is_dir():
        print(f"--out must name a JSON file in a folder that exists, got {str(options.out)!r}", file=sys.stderr)
        return ExitCode.REFUSED

    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        remedy = "the same code runs small with --device cpu --size tiny"
        print(f"bench-gpu must run on a machine with CUDA, got none here; {remedy}", file=sys.stderr)
        return ExitCode.REFUSED

    from experiments.benchmarks.gpu import measure

    found = measure(options)
    write_whole(options.out, json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
