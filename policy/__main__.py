"""`python -m policy prior`: finds or builds the embedded policy; `--help` lists the commands that studies add."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from simulator.study_commands import add_study_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command and runs it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m policy", description="The agent being trained.")
    commands = parser.add_subparsers(dest="command", required=True)
    prior = commands.add_parser("prior", help="find the embedded policy, or build it, and print its folder")
    prior.add_argument("--out", type=Path, metavar="FOLDER", help="build it into this new folder")
    prior.add_argument("--seed", type=int, default=0, help="of demonstrations, weights and batches (default 0)")
    prior.add_argument("--narrow", action="store_true", help="demonstrations with a single wording for each move")
    prior.add_argument("--num-tokens", type=int, help="tokens to train on (default: the recipe's)")
    prior.add_argument("--thinking", action="store_true", help="with a thought before every reply (policy.thinking=true)")
    arguments = sys.argv[1:] if arguments is None else arguments
    of_study = add_study_commands("policy", parser, commands, arguments)
    options = parser.parse_args(arguments)
    try:
        if of_study:
            return of_study(options)
        from policy.prior import DemonstrationConfig, PriorConfig
        from policy.prior.prior import build_into, build_prior

        settings = {"num_tokens": options.num_tokens} if options.num_tokens is not None else {}
        demonstrations = DemonstrationConfig(narrow=options.narrow)
        config = PriorConfig(seed=options.seed, thinking=options.thinking, demonstrations=demonstrations, **settings)
        print(build_into(config, options.out) if options.out else build_prior(config))
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
