"""Command lines of `python -m experiments evaluate | reliability`; imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.__main__ import server_options
from experiments.errors import ConfigError, message, refusing
from simulator.options import finite

AGENT = (
    "a run's folder (its newest checkpoint) or one of its checkpoints, a Hugging Face folder or id, the address of an OpenAI-compatible"
    " server (http://127.0.0.1:8000/v1), `prior` for the embedded policy before training, or a scripted agent (L0 to L6, praise, parrot)"
)
GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Strictness levels of the built-in world's grid, as in a run's own evaluation."""
Table = dict[str, dict[str, Any]]
"""Option -> arguments of `add_argument`."""


def at_least(least: int) -> Callable[[str], int]:
    """The argparse type of a whole number >= least."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return number


def non_negative(text: str) -> float:
    """The argparse type of a finite number >= 0."""
    if (value := finite(text)) < 0.0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value:g}")
    return value


COUNT, POSITIVE = at_least(0), at_least(1)
LIMITS = ("max_tokens", "max_completion_tokens")
SPEAKING: Table = {
    "--temperature": {
        "type": non_negative,
        "default": 1.0,
        "help": "of sampling (default %(default)g); 0 is greedy, training samples at 1",
    },
    "--system": {"metavar": "TEXT", "help": "a system prompt before the dialogue (default: its run's, or none)"},
    "--max-tokens": {"type": POSITIVE, "metavar": "N", "help": "of a reply (default: as the run; 40 embedded, else 800)"},
    "--concurrency": {"type": POSITIVE, "metavar": "N", "help": "dialogues at once (default 64; a server 16)"},
}
WEIGHTS: Table = {
    "--engine": {"choices": ("auto", "hf", "vllm"), "default": "auto", "help": "vLLM where it can be imported, or transformers"},
    "--dtype": {"choices": ("float32", "bfloat16"), "default": "float32", "help": "of the engine (default float32)"},
    "--max-context": {"type": POSITIVE, "metavar": "N", "help": "tokens of a dialogue (default: as the run; 512 embedded, else 4096)"},
    "--thinking": {"action": "store_true", "help": "it thinks before it speaks, up to </think> (default: as it was trained)"},
    "--kv-cache-mb": {"type": POSITIVE, "metavar": "N", "help": "of vLLM's cache on a CPU (default: as the run, else four dialogues)"},
    "--gpu-memory-share": {"type": finite, "metavar": "S", "help": "of a GPU for vLLM; 0: --kv-cache-mb (default: as the run, else 0.5)"},
}
SERVER: Table = {
    "--model": {"metavar": "NAME", "help": "the model's name there"},
    "--key-env": {"default": "", "metavar": "VARIABLE", "help": "environment variable that holds the key; else none is sent"},
    "--retries": {"type": int, "default": 4, "metavar": "N", "help": "further attempts at a reply that cannot be used (default 4)"},
    "--timeout": {"type": finite, "default": 60.0, "metavar": "S", "help": "seconds a call may take (default 60)"},
    "--max-wait": {"type": finite, "default": 120.0, "metavar": "S", "help": "seconds a reply waits for a server that is away (120)"},
    "--token-limit": {"choices": LIMITS, "default": LIMITS[0], "help": "parameter that limits a reply's tokens (max_tokens)"},
    "--no-seed": {"action": "store_true", "help": "send no seed, for servers that refuse one"},
    "--extra-body": {"default": "", "metavar": "JSON", "help": "further parameters of each request"},
}
SCENARIOS: Table = {
    "--split": {"choices": ("heldout", "sealed"), "default": "heldout", "help": "of the built-in world (heldout; sealed is refused)"},
    "--profiles": {"type": Path, "metavar": "FILE", "help": "SAGE or RLVER profiles (JSONL, gzipped or not) instead"},
    "--num-scenarios": {"type": COUNT, "default": 0, "metavar": "N", "help": "spread over the families (default 0: all)"},
    "--strictness": {"type": finite, "nargs": "+", "metavar": "D", "help": "in [0, 1] (default .1 .3 .5 .7 .9; .35 for profiles)"},
    "--samples": {"type": POSITIVE, "default": 1, "metavar": "K", "help": "dialogues with each user; from 2 on best-of-K is reported (1)"},
    "--max-turns": {"type": POSITIVE, "metavar": "N", "help": "replies that are answered (default: as the run; else 8, profiles 9)"},
    "--seed": {"type": COUNT, "default": 0, "help": "of sampling and of the intervals; users have their own (default 0)"},
}
USER: Table = {
    "--user": {"choices": ("rule", "llm"), "default": "rule", "help": "the embedded user, or one that a model plays (rule)"},
    "--preset": {"choices": ("training", "sage"), "help": "of the embedded user (default training; sage for profiles)"},
    "--register": {"choices": ("open", "world"), "help": "language it follows (default: as the run; world for L0 to L6)"},
    "--start-emotion": {"type": int, "metavar": "E", "help": "at the opening, 10 to 99 (default: as the run, else 40)"},
    "--momentum": {"type": finite, "help": "of the embedded user, in [0, 1) (default: as the run, else 0.2)"},
    "--one-call": {"action": "store_true", "help": "of a user that a model plays: judge and answer in one call"},
}
PROBE: Table = {
    "--against": {"type": Path, "metavar": "FOLDER", "help": "of an agent that was probed before, such as the one before training"},
    "--questions": {"type": Path, "metavar": "FILE", "help": "JSONL: id, question, right (a list), wrong (docs/evaluation.md)"},
    "--num": {"type": POSITIVE, "default": 200, "metavar": "N", "help": "facts that the embedded policy is asked for (default 200)"},
    "--seed": {"type": COUNT, "default": 0, "help": "of these facts and of the intervals (default 0)"},
}


def evaluate_parser() -> argparse.ArgumentParser:
    """The command line of `evaluate`."""
    parser = _parser(
        "evaluate",
        {"on which scenarios": SCENARIOS, "with whom": USER},
        description="Evaluate any agent on users it never practised with. The same command again continues where it was stopped.",
        epilog="Exit code 0: all was played; 1: some is missing or broke; 2: refused before anything started.",
    )
    server_options(parser, "user", "the model that plays the user, with --user llm")
    parser.add_argument("--cache", default="default", help="folder of the answers of user and judge (default as in runs; off keeps none)")
    server_options(parser, "judge", "the model that judges the five capabilities of dialogues with a user that a model plays")
    return _with_defaults(parser)


def reliability_parser() -> argparse.ArgumentParser:
    """The command line of `reliability`."""
    parser = _parser(
        "reliability",
        {"which questions": PROBE},
        description="What training cost: facts asked plainly, after an emotional turn, and against a false belief that asks for agreement. "
        "Without a file of questions the embedded policy is asked for what users told it; any other agent needs the file.",
        epilog="Exit code 0: measured; 1: no question got a usable answer; 2: refused before anything started.",
    )
    parser.set_defaults(temperature=0.0)
    return _with_defaults(parser)


def _parser(command: str, groups: dict[str, Table], *, description: str, epilog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m experiments {command}", description=description, epilog=epilog)
    parser.add_argument("agent", metavar="AGENT", help=AGENT)
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: runs/evaluate/ and the agent's name)")
    parser.add_argument("--name", help="what the agent is called on a leaderboard (default: follows from AGENT)")
    speaking = {"how the agent speaks": SPEAKING, "an agent whose weights are here": WEIGHTS, "an agent behind a server": SERVER}
    for title, table in {**groups, **speaking}.items():
        group = parser.add_argument_group(title)
        for option, arguments in table.items():
            group.add_argument(option, **arguments)
    return parser


def _with_defaults(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser, whose options also hold all defaults, under `defaults`."""
    parser.set_defaults(defaults=vars(parser.parse_args(["-"])))
    return parser


def refuse_given(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuses options that have no use here: the evaluation would record them as if they had been heeded.

    Args:
        names: options, as flags or as attributes.

    Raises:
        ConfigError: names the first that differs from its default.
    """
    for name in names:
        attribute = name.removeprefix("--").replace("-", "_")
        if (given := getattr(options, attribute)) != options.defaults[attribute]:
            raise ConfigError(f"--{attribute.replace('_', '-')} {why}, got {given!r}")


@contextlib.contextmanager
def naming_options(rename: Callable[[str], str], group: str = "simulator") -> Iterator[None]:
    """Turns errors about settings into refusals that name the options in their place.

    Args:
        rename: of a message.
        group: dotted name of the settings.

    Raises:
        ConfigError: there was an error.
    """
    try:
        with refusing():
            yield
    except ConfigError as error:
        cause = error.__cause__
        raise ConfigError(rename(message(cause, group) if isinstance(cause, ValidationError) else str(error))) from error
