"""The command line of `python -m simulator`; imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

SPLITS = ("train", "heldout", "sealed")
STRICTNESSES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


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


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds every command with its options."""
    ladder = commands.add_parser("ladder", help="score of the scripted agents by difficulty: mean final emotion, 0-100")
    _split(ladder)
    ladder.add_argument("--strictness", type=finite, nargs="+", default=list(STRICTNESSES), help="scalar difficulties in [0, 1]")
    ladder.add_argument("--by-family", action="store_true", help="a table for each hidden intention and persona type")

    scenarios = commands.add_parser("scenarios", help="print scenario cards")
    _split(scenarios)
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
    skills.add_argument("--register", choices=("open", "world"), help="the language that counts as clear (as recorded, else world)")

    calibrate = commands.add_parser("calibrate", help="realised against commanded strictness, on frozen dialogues judged again")
    calibrate.description = "Exit code 0: users are as commanded; 1: a bound is missed; 2: the request cannot be met."
    _split(calibrate, "of the frozen panel", choices=SPLITS[:2])
    calibrate.add_argument("--dialogues", type=Path, metavar="FILE", help="a run's dialogues.jsonl, or its folder, instead of the panel")
    calibrate.add_argument("--levels", type=finite, nargs="+", help="strictnesses to judge at, rising, in [0, 1] (default 0 to 1 by 0.05)")
    calibrate.add_argument(
        "--per-family", type=at_least(1), help="scenarios of each family in the panel (default 4), or dialogues of FILE (24)"
    )
    calibrate.add_argument("--register", choices=("open", "world"), help="the language that counts as clear (open, or as the run has it)")
    calibrate.add_argument("--seed", type=int, default=0, help="chooses scenarios, dialogues and the user's random choices (default 0)")
    calibrate.add_argument("--by-family", action="store_true", help="a line for each hidden intention and persona type")
    calibrate.add_argument("--out", type=Path, metavar="FOLDER", help="write calibration.json and calibration.svg there")

    adversaries = commands.add_parser("adversaries", help="agents that try to be paid for nothing, compared with the ladder")
    adversaries.description = "Exit code 0: no unknown trick pays (docs/users.md); 1: one does; 2: the request cannot be met."
    _split(adversaries, choices=SPLITS[:2])
    adversaries.add_argument("--per-family", type=at_least(1), default=4, help="scenarios of each family (default 4)")
    adversaries.add_argument("--register", choices=("open", "world"), help="only this register (default both)")
    adversaries.add_argument("--agent", nargs="+", metavar="NAME", help="only these adversaries")
    adversaries.add_argument("--seed", type=int, default=0, help="chooses scenarios and the user's random choices (default 0)")

    _chat(commands.add_parser("chat", help="talk to a simulated user in the terminal, or watch a scripted agent do it"))

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
    _user(explain, "settings of the user (default: those of the record or the run's config.yaml, else as in brackets)").add_argument(
        "--preset", choices=("training", "sage"), help="the rule: skills and difficulty, or the one fitted on SAGE's users (training)"
    )

    convert = commands.add_parser("convert", help="transcripts into SAGE's format, or from it")
    convert.add_argument("source", type=Path, metavar="SOURCE", help="a file of ours or of SAGE's, one dialogue a line, gzipped or not")
    convert.add_argument("target", type=Path, metavar="TARGET", help="the file to write; gzipped if its name ends in .gz")
    convert.add_argument("--to", choices=("sage", "attune"), help="the wanted format (default: the one that SOURCE does not have)")
    convert.add_argument("--force", action="store_true", help="overwrite TARGET")
    convert.add_argument("--profiles", type=Path, metavar="FILE", help="SAGE's profiles that the dialogues were played on")


def _split(parser: argparse.ArgumentParser, what: str = "", *, choices: tuple[str, ...] = SPLITS) -> None:
    parser.add_argument("--split", choices=choices, default="train", help=f"scenarios {what} (default train)".replace("  ", " "))


def _user(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Settings of the embedded user; None leaves them to the record, or to their defaults."""
    group = parser.add_argument_group(title)
    group.add_argument("--register", choices=("open", "world"), help="the language that counts as clear: English or the world's (open)")
    group.add_argument("--momentum", type=finite, help="share of the last change that carries over, in [0, 1) (0.2)")
    group.add_argument("--start-emotion", type=int, help="emotion at the opening, 10 to 99 (40)")
    group.add_argument("--quantise", action=argparse.BooleanOptionalAction, help="round changes to those of SAGE's users (no)")
    return group


def _chat(parser: argparse.ArgumentParser) -> None:
    who = parser.add_argument_group("the user")
    who.add_argument("--scenario", help="its id (default: one that --split, --family and --seed choose)")
    who.add_argument("--family", help="hidden intention and persona type, such as advice/negative")
    who.add_argument("--split", choices=SPLITS, default="train", help="scenarios (default train)")
    who.add_argument("--seed", type=int, default=0, help="chooses the scenario and the user's random choices (default 0)")
    who.add_argument("--agent", help="watch a scripted agent talk instead of you: L0 to L6, praise or parrot")
    who.add_argument("--auto", action="store_true", help="with --agent: all at once instead of a reply for each Enter")
    hard = parser.add_argument_group("difficulty")
    hard.add_argument("--strictness", type=finite, default=0.35, help="scalar difficulty in [0, 1] (default 0.35, VANILLA)")
    instead = "instead of the value that --strictness gives"
    hard.add_argument("--strictness-axis", type=finite, help=f"how much skill a reply must show, in [0, 1]; {instead}")
    hard.add_argument("--reserve", type=finite, help=f"how little they say of what they want and felt, in [0, 1]; {instead}")
    hard.add_argument("--impatience", type=finite, help=f"how fast emotion drains, in [0, 1]; {instead}")
    hard.add_argument("--max-turns", type=int, default=8, help="replies until it is over (default 8)")
    _user(parser, "how they listen and feel")
    shown = parser.add_argument_group("output")
    shown.add_argument("--why", action="store_true", help="always show their thought and the strategies that they heard")
    shown.add_argument("--steps", action="store_true", help="always show the five steps to each change, with the numbers")
    shown.add_argument("--save", type=Path, metavar="FILE", help="append each dialogue to this JSONL file")
