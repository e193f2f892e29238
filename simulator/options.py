"""Command-line options: of `python -m simulator`, and of the servers that play or judge users. Nothing heavy is imported."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any


def finite(text: str) -> float:
    """A finite number: `float` takes nan and inf too, which pass every bound or none.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return value


def at_least(lowest: int) -> Any:
    """A type of option: whole numbers from `lowest` on."""

    def number(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"must be a whole number, at least {lowest}, got {text!r}")
        return int(text)

    return number


# Servers

FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "url": ("urls", {"action": "append", "metavar": "URL", "help": "an OpenAI-compatible server's address; may be given again"}),
    "model": ("model", {"metavar": "NAME", "help": "the model's name there"}),
    "key_env": ("api_key_env", {"metavar": "VARIABLE", "help": "environment variable that holds the key; "}),
    "temperature": ("temperature", {"type": finite, "metavar": "T", "help": "of sampling (default 0; 0.6 with a model that thinks)"}),
    "thinks": ("thinks", {"action": "store_const", "const": True, "help": "the model thinks before it answers"}),
    "format": ("answer_format", {"choices": ("json_schema", "json_object", "text"), "help": "how it is asked to answer in JSON"}),
    "concurrency": ("concurrency", {"type": int, "metavar": "N", "help": "calls under way at one server (default 16)"}),
    "retries": ("retries", {"type": int, "metavar": "N", "help": "further attempts at an answer that cannot be read (default 4)"}),
    "timeout": ("timeout_s", {"type": finite, "metavar": "S", "help": "seconds a call may take (default 60)"}),
    "max_wait": ("max_wait_s", {"type": finite, "metavar": "S", "help": "seconds to wait for a server that is away (default 120)"}),
    "max_tokens": (
        "max_tokens",
        {"type": int, "metavar": "N", "help": "of an answer, thoughts among them (default 800; 4000 without a schema, or if it thinks)"},
    ),
    "extra_body": ("extra_body", {"metavar": "JSON", "help": "further parameters of each request"}),
}
"""Option -> the endpoint's setting, and the option's form: `--judge-url`, `--user-key-env` and so on."""
USER_FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "max_chars": (
        "max_chars",
        {"type": int, "metavar": "N", "help": "longest text in an answer, for a model that never ends one (no limit)"},
    )
}
"""Further ones of a model that plays the user."""


def server_options(parser: argparse.ArgumentParser, who: str, title: str, *, no_key: str = "none is sent without it") -> None:
    """Adds the options of a server.

    Args:
        who: `judge`, `user` or `listener`.
        no_key: the key where no variable is named.
    """
    group = parser.add_argument_group(title)
    for flag, (_, form) in flags_of(who).items():
        further = {"help": form["help"] + no_key} if flag == "key_env" else {}
        group.add_argument(f"--{who}-{flag.replace('_', '-')}", **{**form, **further})


def flags_of(who: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The options of a server of `judge`, `user` or `listener`."""
    return FLAGS | (USER_FLAGS if who == "user" else {})


def flag_settings(options: argparse.Namespace, who: str) -> dict[str, Any]:
    """The endpoint's settings that were given on the command line, and the cache.

    Args:
        who: `judge`, `user` or `listener`.
    """
    given = {setting: getattr(options, f"{who}_{flag}") for flag, (setting, _) in flags_of(who).items()}
    return {name: value for name, value in given.items() if value is not None} | {"cache": options.cache}


def in_options(message: str, prefix: str = "--") -> str:
    """A complaint of the client about `simulator.<setting>`, with options in the place of settings.

    Args:
        prefix: of the options: `--` of the agent, `--user-` or `--judge-`.
    """
    flags = {setting: flag.replace("_", "-") for flag, (setting, _) in (FLAGS | USER_FLAGS).items()}
    without = {"kind", "retry_share", "cache", "first_backoff_s", "max_backoff_s", "circuit_failures", "circuit_pause_s"}
    without |= {"start_emotion", "price_prompt", "price_completion"}

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name in without:
            words = "the " + name.removesuffix("_s").replace("_", " ")
            return f"{words} of {value}, which no option sets," if value else words
        return prefix + flags.get(name, name.replace("_", "-")) + (f"={value}" if value and value != "true" else "")

    return re.sub(r"simulator\.(\w+|\*)(?:=([\w.]+\w|\w))?", option, message)


def of_judge(message: str) -> str:
    """A complaint about the judge's server."""
    return in_options(message, "--judge-").replace("the simulated user", "the judge")


# Commands of `python -m simulator`


def split_option(parser: argparse._ActionsContainer, choices: tuple[str, ...] = ("train", "heldout", "sealed", "pressure")) -> None:
    """Adds `--split`."""
    parser.add_argument("--split", choices=choices, default="train", help="scenarios (default train)")


def user_options(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Settings of the embedded user; None leaves them to the record, or to their defaults."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--register",
        choices=("open", "world"),
        help="open: ordinary English or Chinese; world: the embedded policy's small language (open)",
    )
    group.add_argument("--momentum", type=finite, help="share of the last change that carries over, in [0, 1) (0.2)")
    group.add_argument("--start-emotion", type=int, help="emotion at the opening, 10 to 99 (40)")
    group.add_argument("--quantise", action=argparse.BooleanOptionalAction, help="round changes to those of SAGE's users (no)")
    return group


def listener_options(parser: argparse.ArgumentParser) -> None:
    """Adds how replies are understood and felt."""
    listeners = ("rule", "encoder", "model")
    parser.add_argument("--listener", choices=listeners, default="rule", help="how replies are understood (default rule)")
    parser.add_argument("--strictness", type=finite, default=0.35, help="scalar difficulty in [0, 1] (default 0.35, VANILLA)")
    open_or_world = "open: ordinary English or Chinese; world: the embedded policy's small language (default open, or as the run has it)"
    parser.add_argument("--register", choices=("open", "world"), help=open_or_world)
    parser.add_argument("--cache", default="default", help="folder of the model's answers, or off (default: in ~/.cache)")
    server_options(parser, "listener", "the model, with --listener model")


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds every command with its options."""
    ladder = commands.add_parser("ladder", help="score of the scripted agents by difficulty: mean final emotion, 0-100")
    split_option(ladder, ("train", "heldout", "sealed"))
    levels = [0.0, 0.05, *(i / 10 for i in range(1, 11))]
    ladder.add_argument("--strictness", type=finite, nargs="+", default=levels, help="scalar difficulties in [0, 1]")
    ladder.add_argument("--by-family", action="store_true", help="a table for each hidden intention and persona type")

    scenarios = commands.add_parser("scenarios", help="print scenario cards")
    split_option(scenarios)
    scenarios.add_argument("--num", type=at_least(1), default=10, help="how many, spread over the split (default 10)")

    play = commands.add_parser("play", help="a dialogue between a scripted agent and a user, with emotions and thoughts")
    play.add_argument("agent", help="L0 to L6, or praise")
    play.add_argument("--scenario", help="its id (default: the first training scenario)")
    play.add_argument("--strictness", type=finite, default=0.35, help="scalar difficulty in [0, 1] (default 0.35, VANILLA)")
    play.add_argument("--seed", type=int, default=0, help="of the user's random choices (default 0)")

    skills = commands.add_parser("skills", help="share of replies that showed each skill where it was called for, from a run's dialogues")
    skills.add_argument("file", type=Path, help="dialogues.jsonl or evaluation.jsonl of a run")
    skills.add_argument("--by", choices=("step", "strictness"), default="step", help="a row for ten steps, or for a tenth of strictness")
    skills.add_argument("--from-step", type=int, default=0, help="leave out earlier steps (default 0)")
    skills.add_argument(
        "--register",
        choices=("open", "world"),
        help="open: ordinary English or Chinese; world: the embedded policy's small language (as recorded, else world)",
    )

    calibrate = commands.add_parser("calibrate", help="realised against commanded strictness, on frozen dialogues judged again")
    calibrate.description = "Exit code 0: users are as commanded; 1: a bound is missed; 2: the request cannot be met."
    split_option(calibrate, ("train", "heldout"))
    calibrate.add_argument("--dialogues", type=Path, metavar="FILE", help="a run's dialogues.jsonl, or its folder, instead of the panel")
    calibrate.add_argument("--levels", type=finite, nargs="+", help="strictnesses to judge at, rising, in [0, 1] (default 0 to 1 by 0.05)")
    calibrate.add_argument(
        "--per-family", type=at_least(1), help="scenarios of each family in the panel (default 4), or dialogues of FILE (24)"
    )
    calibrate.add_argument(
        "--register",
        choices=("open", "world"),
        help="open: ordinary English or Chinese; world: the embedded policy's small language (open, or as the run has it)",
    )
    calibrate.add_argument("--listener", choices=("rule", "encoder"), help="how the embedded user understands replies (default rule)")
    calibrate.add_argument("--seed", type=int, default=0, help="chooses scenarios, dialogues and the user's random choices (default 0)")
    calibrate.add_argument("--by-family", action="store_true", help="a line for each hidden intention and persona type")
    calibrate.add_argument("--out", type=Path, metavar="FOLDER", help="write calibration.json and calibration.svg there")
    calibrate.add_argument("--user", choices=("rule", "llm"), default="rule", help="the embedded user, or one that a model plays (rule)")
    calibrate.add_argument("--cache", default="default", help="folder of the model's answers, or off (default: in ~/.cache)")
    server_options(calibrate, "user", "the model that plays the user, with --user llm (levels 0 .25 .5 .75 1; one scenario of each family)")

    adversaries = commands.add_parser("adversaries", help="agents that try to be paid for nothing, compared with the ladder")
    adversaries.description = "Exit code 0: no trick passes its bound (docs/users.md); 1: one does; 2: the request cannot be met."
    split_option(adversaries, ("train", "heldout"))
    adversaries.add_argument("--per-family", type=at_least(1), default=4, help="scenarios of each family (default 4)")
    adversaries.add_argument("--register", choices=("open", "world"), help="only this register (default both, open with the encoder)")
    adversaries.add_argument("--listener", choices=("rule", "encoder"), default="rule", help="how users understand replies (default rule)")
    adversaries.add_argument("--agent", nargs="+", metavar="NAME", help="only these adversaries")
    adversaries.add_argument("--seed", type=int, default=0, help="chooses scenarios and the user's random choices (default 0)")

    chat = commands.add_parser("chat", help="talk to a simulated user in the terminal, or watch a scripted agent do it")
    who = chat.add_argument_group("the user")
    who.add_argument("--scenario", help="its id (default: one that --split, --family and --seed choose)")
    who.add_argument("--family", help="hidden intention and persona type, such as advice/negative")
    split_option(who)
    who.add_argument("--seed", type=int, default=0, help="chooses the scenario and the user's random choices (default 0)")
    who.add_argument("--agent", help="watch a scripted agent talk instead of you: L0 to L6, praise or parrot")
    who.add_argument("--auto", action="store_true", help="with --agent: all at once instead of a reply for each Enter")
    hard = chat.add_argument_group("difficulty")
    hard.add_argument("--strictness", type=finite, default=0.35, help="scalar difficulty in [0, 1] (default 0.35, VANILLA)")
    instead = "instead of the value that --strictness gives"
    hard.add_argument("--strictness-axis", type=finite, help=f"how much skill a reply must show, in [0, 1]; {instead}")
    hard.add_argument("--reserve", type=finite, help=f"how little they say of what they want and felt, in [0, 1]; {instead}")
    hard.add_argument("--impatience", type=finite, help=f"how fast emotion drains, in [0, 1]; {instead}")
    hard.add_argument("--max-turns", type=int, default=8, help="replies until it is over (default 8)")
    user_options(chat, "how they listen and feel")
    shown = chat.add_argument_group("output")
    shown.add_argument("--why", action="store_true", help="always show their thought and the strategies that they heard")
    shown.add_argument("--steps", action="store_true", help="always show the five steps to each change, with the numbers")
    shown.add_argument("--save", type=Path, metavar="FILE", help="append each dialogue to this JSONL file")

    explain = commands.add_parser("explain", help="replay recorded dialogues and show, step by step, how each change comes about")
    explain.description = "Exit code 0: every change is the rule's; 1: one differs; 2: it could not be replayed."
    explain.add_argument("dialogue", type=Path, metavar="DIALOGUE", help="a JSONL file of ours, or a run's folder")
    explain.add_argument("--evaluation", action="store_true", help="of a run's folder the held-out dialogues, not those of training")
    explain.add_argument("--profiles", type=Path, metavar="FILE", help="SAGE's profiles, of dialogues that were played on them")
    explain.add_argument("--uid", help="only dialogues of this uid")
    explain.add_argument("--sibling", type=int, help="only this one of a group")
    explain.add_argument("--step", type=int, help="only dialogues of this step")
    explain.add_argument("--index", type=int, help="only the dialogue of this number in the file, from 1")
    explain.add_argument("--num", type=at_least(0), default=1, help="dialogues shown in full (default 1); all selected ones are replayed")
    user_options(explain, "settings of the user (default: those of the record or the run's config.yaml, else as in brackets)").add_argument(
        "--preset", choices=("training", "sage"), help="the rule: skills and difficulty, or the one fitted on SAGE's users (training)"
    )

    hear = commands.add_parser("hear", help="readings, changes and emotions for written replies, or for recorded dialogues heard again")
    hear.description = (
        "Prints how a listener reads each reply, and the user's change of emotion and emotion. Recorded dialogues keep their words and "
        "difficulty: --strictness, --facts and --seed are for written replies."
    )
    line = 'JSONL, each line {"id", "scenario_id", "replies": [...]} or a recorded dialogue, such as those in a run\'s replies.jsonl'
    hear.add_argument("file", type=Path, metavar="FILE", help=line)
    hear.add_argument(
        "--facts",
        choices=("as_asked", "in_order"),
        default="as_asked",
        help="in_order: one fact a turn, as labelled files (simulator/replies) need; as_asked: as replies invite it (default as_asked)",
    )
    hear.add_argument("--seed", type=int, default=1, help="of the user's random choices, the order of facts among them (default 1)")
    hear.add_argument("--out", type=Path, metavar="OUT", help="JSONL to write (default: printed)")
    listener_options(hear)

    redteam = commands.add_parser("redteam", help="search for replies that please a listener and make no sense, by evolution")
    redteam.add_argument("--users", type=at_least(1), default=5, help="training users who are told four such replies each (default 5)")
    redteam.add_argument("--generations", type=at_least(1), default=200, help="of 24 candidates, for each reply (default 200)")
    redteam.add_argument("--seed", type=int, default=0, help="chooses users, mutations and recombinations (default 0)")
    seeds = Path(__file__).parent / "replies/train.jsonl"
    redteam.add_argument("--replies", type=Path, default=seeds, metavar="FILE", help="labelled replies to breed from (default: train)")
    redteam.add_argument("--out", type=Path, metavar="FILE", help="write the finds as JSONL, which `hear` plays and readers label")
    listener_options(redteam)

    convert = commands.add_parser("convert", help="transcripts into SAGE's format, or from it")
    convert.add_argument("source", type=Path, metavar="SOURCE", help="a file of ours or of SAGE's, one dialogue a line, gzipped or not")
    convert.add_argument("target", type=Path, metavar="TARGET", help="the file to write; gzipped if its name ends in .gz")
    convert.add_argument("--to", choices=("sage", "attune"), help="the wanted format (default: the one that SOURCE does not have)")
    convert.add_argument("--force", action="store_true", help="overwrite TARGET")
    convert.add_argument("--profiles", type=Path, metavar="FILE", help="SAGE's profiles that the dialogues were played on")
