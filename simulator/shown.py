"""How often an agent shows each skill where the situation calls for it, read off dialogues after the fact."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.bank import Bank
from simulator.dialogue import Dialogue, Speaker
from simulator.emotion import PUZZLED_BELOW, REPEATED_AT, Appraisal, appraise
from simulator.jsonl import read_jsonl
from simulator.register import Register
from simulator.skills import Skill

WHAT = "a dialogue of this world"
FURTHER = ("repeated", "garbled")
"""What is counted beside the skills, as a share of all replies."""


def appraisals(dialogue: Dialogue, *, register: Register) -> Iterator[Appraisal]:
    """Every answered reply of a dialogue, weighed again in the light of what had been said by then."""
    for index, turn in enumerate(dialogue.turns[:-1]):
        if turn.speaker is Speaker.AGENT:
            before = replace(dialogue, turns=dialogue.turns[:index], outcome=None)
            yield appraise(before, turn.text, register=register)


def shares_shown(dialogues: Iterable[Dialogue], *, register: Register) -> dict[str, float]:
    """Share of replies that showed each skill, of those whose situation called for it, and the `FURTHER` shares; NaN for none.

    Memory, for one, is called for from the third reply on and repair after a reply that hurt. Whether a skill is shown does not depend
    on whether the difficulty asks for it.
    """
    seen: dict[str, list[bool]] = defaultdict(list)
    for dialogue in dialogues:
        for appraisal in appraisals(dialogue, register=register):
            for skill, shown in appraisal.shown.items():
                if shown is not None:
                    seen[skill].append(shown)
            seen["repeated"].append(appraisal.reading.similarity >= REPEATED_AT)
            seen["garbled"].append(appraisal.reading.clarity < PUZZLED_BELOW)
    return {name: sum(seen[name]) / len(seen[name]) if seen[name] else float("nan") for name in (*Skill, *FURTHER)}


def table_of_shares(rows: Mapping[str, Sequence[Dialogue]], *, header: str, register: Register) -> str:
    """A line for each set of dialogues: how many, their mean final emotion, and `shares_shown`."""
    columns = [*Skill, *FURTHER]
    lines = [f"{header:>10}  dialogues  emotion" + "".join(f"{column:>11}" for column in columns)]
    for name, dialogues in rows.items():
        shares = shares_shown(dialogues, register=register)
        emotion = sum(dialogue.emotion for dialogue in dialogues) / len(dialogues)
        lines.append(f"{name:>10}  {len(dialogues):9}  {emotion:7.1f}" + "".join(f"{shares[column]:11.3f}" for column in columns))
    return "\n".join(lines)


def read_dialogues(path: Path, bank: Bank) -> Iterator[tuple[Mapping[str, Any], Dialogue]]:
    """The records of a run's `dialogues.jsonl`, plain or gzipped, each with its dialogue, without a last line that a kill tore.

    Raises:
        ValueError: a line is no dialogue of this world.
    """
    for number, record in read_jsonl(path, what=WHAT, on_torn=lambda number: say_torn(path, number)):
        try:
            if isinstance(record, Mapping) and not isinstance(record.get("step", 0), int):
                raise ValueError(f"step must be a whole number, got {record['step']!r}")
            yield record, Dialogue.from_dict(record, scenario=bank.scenario(record["scenario_id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} line {number} must be {WHAT}: {error}") from error


def say_torn(path: Path, number: int) -> None:
    """Says that the last line of a file is left out."""
    print(f"note: {path} breaks off within line {number}, as a kill leaves it; that line is left out", file=sys.stderr)
