"""The door of this package: `python -m policy prior | reads`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command and runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m policy", description="The agent being trained.")
    commands = parser.add_subparsers(dest="command", required=True)
    prior = commands.add_parser("prior", help="find the embedded policy, or build it, and print its folder")
    prior.add_argument("--out", type=Path, metavar="FOLDER", help="build it anew, into this folder (which must not be there)")
    prior.add_argument("--seed", type=int, default=0, help="of demonstrations, weights and batches (default 0)")
    prior.add_argument("--narrow", action="store_true", help="demonstrations with a single wording for each move")
    prior.add_argument("--num-tokens", type=int, help="tokens to train on (default: the recipe's)")
    prior.add_argument("--thinking", action="store_true", help="with a thought before every reply (policy.thinking=true)")
    reads = commands.add_parser("reads", help="whether a policy reads hints and nouns, by its own likelihoods on training scenarios")
    reads.add_argument("model", nargs="?", help="a Hugging Face folder, such as a run's checkpoint (default: the prior)")
    reads.add_argument("--num", type=int, default=600, help="replies for each measure (default 600, some minutes)")
    reads.add_argument("--seed", type=int, default=99, help="of the demonstrations (default 99)")
    options = parser.parse_args(arguments)
    try:
        print({"prior": build, "reads": read_report}[options.command](options))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return INTERRUPTED
    return 0


def build(options: argparse.Namespace) -> str:
    """Builds the prior that the options describe and returns its folder."""
    from policy.demonstrations import DemonstrationConfig
    from policy.prior import PriorConfig, build_anew, build_prior

    settings = {"num_tokens": options.num_tokens} if options.num_tokens is not None else {}
    demonstrations = DemonstrationConfig(narrow=options.narrow)
    config = PriorConfig(seed=options.seed, thinking=options.thinking, demonstrations=demonstrations, **settings)
    if options.out:
        return str(build_anew(config, options.out))
    return str(build_prior(config))


def read_report(options: argparse.Namespace) -> str:
    """Measures a policy's reading and returns the tables."""
    if options.num < 1:
        raise ValueError(f"--num must be at least 1, got {options.num}")
    from policy.model import find_model
    from policy.prior import PriorConfig, build_prior
    from policy.reads import report
    from policy.thinking import learnt_to_think

    folder = find_model(options.model) if options.model else build_prior(PriorConfig())
    if learnt_to_think(folder):
        raise ValueError(f"model must speak without thoughts, whose replies follow the user's words at once, got {str(folder)!r}")
    return report(folder, num=options.num, seed=options.seed)


if __name__ == "__main__":
    sys.exit(main())
