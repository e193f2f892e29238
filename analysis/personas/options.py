"""What `python -m analysis persona` takes; nothing but words, so that `--help` answers at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulator.options import finite

STRICTNESS = (0.1, 0.35, 0.55, 0.75, 0.95)


def persona_options(parser: argparse.ArgumentParser) -> None:
    """Options of `persona`."""
    parser.description = (
        "Whether simulated users stay who they are: each line against the card and against earlier lines, questions about themselves, "
        "what they let out, over turns and by strictness, with 95 % intervals over scenarios."
    )
    source = parser.add_argument_group("whose lines").add_mutually_exclusive_group(required=True)
    source.add_argument("--dialogues", type=Path, metavar="PATH", help="a run's folder, or a JSONL file of dialogues as runs write them")
    source.add_argument("--play", type=int, metavar="N", help="N fresh dialogues of the embedded user with scripted agents of mixed skill")
    which = parser.add_argument_group("which of them")
    which.add_argument("--evaluation", action="store_true", help="of a run's folder the held-out dialogues, not those of training")
    which.add_argument("--num", type=int, default=200, help="dialogues drawn from the file, all if it has fewer (default 200)")
    which.add_argument("--strictness", type=finite, nargs="+", default=list(STRICTNESS), help="with --play: scalar difficulties, [0, 1]")
    which.add_argument("--reserve", type=finite, nargs="+", help="with --play: reserve instead of what strictness gives, [0, 1]")
    which.add_argument("--split", choices=("train", "heldout"), default="train", help="with --play: whose scenarios (train)")
    which.add_argument("--seed", type=int, default=0, help="of draws, play, options' order and intervals (default 0)")
    who = parser.add_argument_group("who plays and who judges")
    who.add_argument("--user", choices=("rule", "llm"), help="who played them (default: as the run's config.yaml says, else rule)")
    who.add_argument(
        "--judge",
        choices=("rule", "llm"),
        help="a plain rule, or a model (default: the model if one is named or one played, else the rule)",
    )
    who.add_argument("--quiz-every", type=int, default=1, metavar="N", help="ask at every N-th line (default 1); 0 asks nothing")
    server_options(parser, "judge", "the model that judges")
    title = "the model that played the user, to be asked about itself (default: as config.yaml says)"
    server_options(parser, "user", title, no_key="without it that of config.yaml, and none at another --user-url")
    parser.add_argument("--cache", default="default", help="folder of answers of models (default as in runs; off keeps none)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON to this file")


def server_options(parser: argparse.ArgumentParser, who: str, title: str, *, no_key: str = "none is sent without it") -> None:
    """How to reach a model, as `--<who>-url` and so on.

    Args:
        no_key: what happens where no variable is named.
    """
    group = parser.add_argument_group(title)
    group.add_argument(f"--{who}-url", action="append", metavar="URL", help="an OpenAI-compatible server's address; may be given again")
    group.add_argument(f"--{who}-model", metavar="NAME", help="the model's name there")
    group.add_argument(f"--{who}-key-env", metavar="VARIABLE", help=f"environment variable that holds the key; {no_key}")
    group.add_argument(f"--{who}-format", choices=("json_schema", "json_object", "text"), help="how it is told to answer in JSON")
    group.add_argument(f"--{who}-concurrency", type=int, metavar="N", help="calls under way at one server (default 16)")
    group.add_argument(f"--{who}-retries", type=int, metavar="N", help="further attempts at an answer that cannot be read (default 4)")
    group.add_argument(f"--{who}-timeout", type=finite, metavar="S", help="seconds a call may take (default 60)")
    group.add_argument(f"--{who}-max-wait", type=finite, metavar="S", help="seconds to wait for a server that is away (default 120)")
    group.add_argument(f"--{who}-max-tokens", type=int, metavar="N", help="of an answer, thoughts among them (default 800)")
    group.add_argument(f"--{who}-extra-body", metavar="JSON", help="further parameters of each request")
