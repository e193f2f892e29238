"""What the longer commands of `python -m simulator` take, and what any option's number may be; nothing heavy: `--help` answers at once."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def finite(text: str) -> float:
    """A number that an option can mean: `float` takes nan and inf as well, which pass every bound or none.

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


def chat_options(parser: argparse.ArgumentParser) -> None:
    """Options of `chat`."""
    who = parser.add_argument_group("who is there")
    who.add_argument("--scenario", help="its id (default: one that --split, --family and --seed choose)")
    who.add_argument("--family", help="hidden intention and persona type, such as advice/negative")
    who.add_argument("--split", choices=("train", "heldout", "sealed"), default="train", help="whose scenarios (default train)")
    who.add_argument("--seed", type=int, default=0, help="chooses the scenario and what the user leaves to chance (default 0)")
    who.add_argument("--agent", help="watch a scripted agent talk instead of you: L0 to L6, praise or parrot")
    who.add_argument("--auto", action="store_true", help="with --agent: all at once instead of a reply for each Enter")
    hard = parser.add_argument_group("how hard they are to please")
    hard.add_argument("--strictness", type=finite, default=0.35, help="scalar difficulty in [0, 1] (default .35, VANILLA)")
    hard.add_argument(
        "--strictness-axis", type=finite, help="how much skill a reply must show, in [0, 1]; instead of what --strictness gives"
    )
    hard.add_argument("--reserve", type=finite, help="how little they say of what they want and felt; instead of what --strictness gives")
    hard.add_argument("--impatience", type=finite, help="how fast emotion drains; instead of what --strictness gives")
    hard.add_argument("--max-turns", type=int, default=8, help="replies until it is over (default 8)")
    user_options(parser, "how they listen and feel")
    shown = parser.add_argument_group("what is shown and kept")
    shown.add_argument("--why", action="store_true", help="always show what they thought and which strategies they heard")
    shown.add_argument("--steps", action="store_true", help="always show the five steps to each change, with the figures")
    shown.add_argument("--save", type=Path, metavar="FILE", help="append each dialogue to this JSONL file")


def explain_options(parser: argparse.ArgumentParser) -> None:
    """Options of `explain`."""
    parser.description = "Exit code 0: every change is the one that the rule gives; 1: one differs; 2: it could not be replayed."
    parser.add_argument("dialogue", type=Path, metavar="DIALOGUE", help="a JSONL file of ours, or a run's folder")
    parser.add_argument("--evaluation", action="store_true", help="of a run's folder the held-out dialogues, not those of training")
    parser.add_argument("--profiles", type=Path, metavar="FILE", help="SAGE's profiles, of dialogues that were played on them")
    parser.add_argument("--uid", help="only dialogues of this uid")
    parser.add_argument("--sibling", type=int, help="only this one of a group")
    parser.add_argument("--step", type=int, help="only dialogues of this step")
    parser.add_argument("--index", type=int, help="only the dialogue of this number in the file, from 1")
    parser.add_argument("--num", type=int, default=1, help="how many are shown in full (default 1); all that are selected are replayed")
    user_options(parser, "how the user was set (default: as the record or the run's config.yaml says, else as in brackets)").add_argument(
        "--preset", choices=("training", "sage"), help="the rule: skills and difficulty, or the one fitted on SAGE's users (training)"
    )


def user_options(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Settings of the embedded user; None leaves them to what is recorded, or to their defaults."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--register", choices=("open", "world"), help="the language that counts as clear: any English, or the world's (open)"
    )
    group.add_argument("--momentum", type=finite, help="share of the last change that carries over, in [0, 1) (.2)")
    group.add_argument("--start-emotion", type=int, help="emotion at the opening, 10 to 99 (40)")
    group.add_argument("--quantise", action=argparse.BooleanOptionalAction, help="round changes to those of SAGE's users (no)")
    return group


def convert_options(parser: argparse.ArgumentParser) -> None:
    """Options of `convert`."""
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a file of ours or of SAGE's, one dialogue a line, gzipped or not")
    parser.add_argument("target", type=Path, metavar="TARGET", help="the file to write; gzipped if its name ends in .gz")
    parser.add_argument("--to", choices=("sage", "attune"), help="the wanted format (default: the one that SOURCE is not in)")
    parser.add_argument("--bare", action="store_true", help="leave out what the format has no place for, instead of keeping it apart")
    parser.add_argument("--force", action="store_true", help="write over TARGET")
    help_text = "SAGE's profiles that the dialogues were played on: who they are goes into SAGE's records, and is not kept in ours"
    parser.add_argument("--profiles", type=Path, metavar="FILE", help=help_text)


def calibrate_options(parser: argparse.ArgumentParser) -> None:
    """Options of `calibrate`."""
    parser.description = "Exit code 0: users are what was commanded; 1: a bound is missed; 2: the request cannot be met."
    parser.add_argument("--split", choices=("train", "heldout"), default="train", help="whose scenarios the frozen panel is about (train)")
    parser.add_argument("--dialogues", type=Path, metavar="FILE", help="a run's dialogues.jsonl, or its folder, instead of the panel")
    parser.add_argument("--levels", type=finite, nargs="+", help="strictnesses to judge at, rising, in [0, 1] (default 0 to 1 by .05)")
    parser.add_argument("--per-family", type=int, help="scenarios of each family in the panel (default 4), or dialogues of FILE (24)")
    parser.add_argument("--register", choices=("open", "world"), help="the language that counts as clear (open, or as the run has it)")
    parser.add_argument("--seed", type=int, default=0, help="chooses scenarios, dialogues, and what users leave to chance (default 0)")
    parser.add_argument("--by-family", action="store_true", help="a line for each hidden intention and persona type")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write calibration.json and calibration.svg there")


def adversaries_options(parser: argparse.ArgumentParser) -> None:
    """Options of `adversaries`."""
    parser.description = (
        "Exit code 0: no trick pays but the one that is known to (docs/users.md); 1: one does; 2: the request cannot be met."
    )
    parser.add_argument("--split", choices=("train", "heldout"), default="train", help="whose scenarios (default train)")
    parser.add_argument("--per-family", type=int, default=4, help="scenarios of each family (default 4)")
    parser.add_argument("--register", choices=("open", "world"), help="only this register (default both)")
    parser.add_argument("--agent", nargs="+", metavar="NAME", help="only these adversaries")
    parser.add_argument("--seed", type=int, default=0, help="chooses scenarios and what users leave to chance (default 0)")
