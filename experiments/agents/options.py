"""What `python -m experiments evaluate | reliability` takes; nothing but words, so that `--help` answers at once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.__main__ import server_options
from experiments.errors import ConfigError
from simulator.options import finite

AGENT = (
    "a run's folder (its newest checkpoint) or one of its checkpoints, a Hugging Face folder or id, the address of an OpenAI-compatible"
    " server (http://127.0.0.1:8000/v1), `prior` for the embedded policy before training, or a scripted agent (L0 to L6, praise, parrot)"
)
GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Strictnesses of the built-in world's grid, as in a run's own evaluation."""


def evaluate_parser() -> argparse.ArgumentParser:
    """The command line of `evaluate`."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments evaluate",
        description="Evaluate any agent on users it never practised with. The same command again goes on where it was broken off.",
        epilog="Exit code 0: all was played; 1: some is missing or broke; 2: refused before anything started.",
    )
    parser.add_argument("agent", metavar="AGENT", help=AGENT)
    parser.add_argument("--dry-run", action="store_true", help="say what would be played and with what, and start nothing")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: runs/evaluate/ and the agent's name)")
    parser.add_argument("--name", help="what the agent is called on a leaderboard (default: follows from AGENT)")
    scenario_options(parser)
    user_options(parser)
    speaking_options(parser)
    server_options(parser, "judge", "the model that judges the five capabilities of dialogues with a user that a model plays")
    return with_usual(parser)


def scenario_options(parser: argparse.ArgumentParser) -> None:
    """On which scenarios."""
    group = parser.add_argument_group("on which scenarios")
    group.add_argument(
        "--split", choices=("heldout", "sealed"), default="heldout", help="of the built-in world (heldout; sealed is refused)"
    )
    group.add_argument("--profiles", type=Path, metavar="FILE", help="SAGE or RLVER profiles (JSONL, gzipped or not) instead")
    group.add_argument("--num-scenarios", type=int, default=0, metavar="N", help="so many, spread over the families (default 0: all)")
    group.add_argument("--strictness", type=finite, nargs="+", metavar="D", help="in [0, 1] (default .1 .3 .5 .7 .9; .35 for profiles)")
    group.add_argument("--samples", type=int, default=1, metavar="K", help="dialogues with each user; from 2 on best-of-K is told (1)")
    group.add_argument("--max-turns", type=int, metavar="N", help="replies that are answered (default: as the run; else 8, profiles 9)")
    group.add_argument("--seed", type=int, default=0, help="of sampling and of the intervals; users have their own (default 0)")


def user_options(parser: argparse.ArgumentParser) -> None:
    """With whom."""
    group = parser.add_argument_group("with whom")
    group.add_argument("--user", choices=("rule", "llm"), default="rule", help="the embedded user, or one that a model plays (rule)")
    group.add_argument("--preset", choices=("training", "sage"), help="of the embedded user (default training; sage for profiles)")
    group.add_argument("--register", choices=("open", "world"), help="language it follows (default: as the run; world for L0 to L6)")
    group.add_argument("--start-emotion", type=int, metavar="E", help="at the opening, 10 to 99 (default: as the run, else 40)")
    group.add_argument("--momentum", type=finite, help="of the embedded user, in [0, 1) (default: as the run, else .2)")
    group.add_argument("--one-call", action="store_true", help="of a user that a model plays: judge and answer in one call")
    server_options(parser, "user", "the model that plays the user, with --user llm")
    parser.add_argument("--cache", default="default", help="folder of the answers of user and judge (default as in runs; off keeps none)")


def reliability_parser() -> argparse.ArgumentParser:
    """The command line of `reliability`."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments reliability",
        description=(
            "What training cost: facts asked plainly, after an emotional turn, and against a false belief that asks for agreement. "
            "Without a file of questions the embedded policy is asked for what users told it; any other agent needs the file."
        ),
        epilog="Exit code 0: measured; 1: no question got an answer of use; 2: refused before anything started.",
    )
    parser.add_argument("agent", metavar="AGENT", help=AGENT)
    parser.add_argument("--dry-run", action="store_true", help="say what would be asked, and start nothing")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: the agent's evaluation, runs/evaluate/<name>)")
    parser.add_argument("--name", help="what the agent is called (default: follows from AGENT)")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="of an agent that was probed before, such as the one before training"
    )
    parser.add_argument("--questions", type=Path, metavar="FILE", help="JSONL: id, question, right (a list), wrong (docs/evaluation.md)")
    parser.add_argument("--num", type=int, default=200, metavar="N", help="facts that the embedded policy is asked for (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of these facts and of the intervals (default 0)")
    speaking_options(parser, temperature=0.0)
    return with_usual(parser)


def with_usual(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser, whose options then know under `usual` what each is where nothing was said."""
    parser.set_defaults(usual=vars(parser.parse_args(["-"])))
    return parser


def refuse_given(options: argparse.Namespace, names: Sequence[str], why: str, *, where: str = "") -> None:
    """Refuses the first of these options that was given.

    Args:
        where: with what it was given; empty where `why` says that.

    Raises:
        ConfigError: names it, and says why.
    """
    for name in names:
        if (given := getattr(options, name)) != options.usual[name]:
            raise ConfigError(f"--{name.replace('_', '-')} {why}, got {given!r}{f' with {where}' if where else ''}")


def speaking_options(parser: argparse.ArgumentParser, *, temperature: float = 1.0) -> None:
    """How the agent is asked.

    Args:
        temperature: the default one.
    """
    group = parser.add_argument_group("how the agent speaks")
    usual = f"at which it is sampled (default {temperature:g}); 0 is greedy, training samples at 1"
    group.add_argument("--temperature", type=finite, default=temperature, help=usual)
    group.add_argument("--system", metavar="TEXT", help="a system prompt before the dialogue (default: its run's, or none)")
    group.add_argument("--max-tokens", type=int, metavar="N", help="of a reply (default: as the run; 40 embedded, else 800)")
    group.add_argument("--concurrency", type=int, metavar="N", help="dialogues at once (default 64; a server 16)")
    model = parser.add_argument_group("an agent whose weights are here")
    model.add_argument("--engine", choices=("auto", "hf", "vllm"), default="auto", help="vLLM where it can be imported, or transformers")
    model.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="what it computes in (default float32)")
    model.add_argument("--max-context", type=int, metavar="N", help="tokens of a dialogue (default: as the run; 512 embedded, else 4096)")
    model.add_argument("--thinking", action="store_true", help="it thinks before it speaks, up to </think> (default: as it was trained)")
    cache = "memory of vLLM's cache on a CPU, MiB (default: as the run, else room for four whole dialogues)"
    model.add_argument("--kv-cache-mb", type=int, metavar="N", help=cache)
    share = "of a GPU that vLLM fills; 0: its cache has --kv-cache-mb (default: as the run, else .5)"
    model.add_argument("--gpu-memory-share", type=finite, metavar="S", help=share)
    server = parser.add_argument_group("an agent behind a server")
    server.add_argument("--model", metavar="NAME", help="the model's name there")
    server.add_argument("--key-env", default="", metavar="VARIABLE", help="environment variable that holds the key; else none is sent")
    server.add_argument("--retries", type=int, default=4, metavar="N", help="further attempts at a reply that is of no use (default 4)")
    server.add_argument("--timeout", type=finite, default=60.0, metavar="S", help="seconds a call may take (default 60)")
    server.add_argument("--max-wait", type=finite, default=120.0, metavar="S", help="seconds a reply waits for a server that is away (120)")
    names = ("max_tokens", "max_completion_tokens")
    server.add_argument("--token-limit", choices=names, default=names[0], help="what it calls the limit on a reply (max_tokens)")
    server.add_argument("--no-seed", action="store_true", help="send no seed, for servers that refuse one")
    server.add_argument("--extra-body", default="", metavar="JSON", help="further parameters of each request")
