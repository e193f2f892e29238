"""Thousands of dialogues in a few megabytes: what occurs again is written once, and the page's script puts it together."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from analysis.runs import turns_with_thoughts
from simulator.dialogue import Speaker

Record = Mapping[str, Any]
"""A line of `dialogues.jsonl` or `evaluation.jsonl`, with a `kind`."""
TASK_FIELDS = ("uid", "mode", "seed")
"""What the dialogues of a group share, beside scenario and difficulty."""
DIALOGUE_FIELDS = ("kind", "step", "sibling", "look", "outcome", "emotion")
AXES = ("strictness", "reserve", "impatience")
SENTENCE = re.compile(r"(?<=[.!?]) ")
"""Where texts are taken apart: users and small policies put the same sentences together again and again."""


class Table:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._places: dict[Hashable, int] = {}

    def place(self, value: Any, key: Hashable | None = None) -> int:
        """The number of a value, which is added if it is new.

        Args:
            key: stands for a value that cannot be hashed.
        """
        key = value if key is None else key
        if key not in self._places:
            self._places[key] = len(self.rows)
            self.rows.append(value)
        return self._places[key]


def pack(records: Iterable[Record]) -> dict[str, Any]:
    """Dialogues as tables, JSON-able; `viewer.js` puts together again what a reader of transcripts wants to see.

    Returns:
        `sentences`: strings; `texts`: lists of sentence numbers, joined by spaces; `heard`: lists of strategies;
        `scenarios`: [id, family, hidden intention as a text]; `tasks`: [*TASK_FIELDS, scenario, *AXES]; `dialogues`:
        [task, *DIALOGUE_FIELDS, error as a text, *turns], where a turn of the agent is [text] or [text, thought as a text], one of the user
        [text, emotion, change, thought as a text, heard], with a sixth entry where the record has `steps`: their texts.

    Raises:
        ValueError: a record lacks something.
    """
    sentences, texts, heard, scenarios, tasks = Table(), Table(), Table(), Table(), Table()

    def text_of(text: str) -> int:
        parts = tuple(sentences.place(sentence) for sentence in SENTENCE.split(text))
        return texts.place(list(parts), parts)

    def turn_of(turn: Record) -> list[Any]:
        said = text_of(turn["text"])
        if turn["speaker"] == Speaker.AGENT:
            return [said, text_of(turn["thought"])] if turn.get("thought") else [said]
        strategies = turn.get("heard", [])
        thought = text_of(turn.get("thought", ""))
        row = [said, turn.get("emotion"), turn.get("change"), thought, heard.place(strategies, tuple(strategies))]
        return [*row, [text_of(step) for step in turn["steps"]]] if "steps" in turn else row

    def row_of(record: Record) -> list[Any]:
        card = (record["scenario_id"], record["family"], text_of(record["hidden_intention"]))
        scenario = scenarios.place(list(card), card)
        difficulty = [record["difficulty"][axis] for axis in AXES]
        task = [*(record.get(name) for name in TASK_FIELDS), scenario, *difficulty]
        head = [tasks.place(task, tuple(task)), *(record.get(name) for name in DIALOGUE_FIELDS)]
        return [*head, text_of(record.get("error", "")), *map(turn_of, turns_with_thoughts(record))]

    dialogues = []
    for record in records:
        try:
            dialogues.append(row_of(record))
        except (KeyError, TypeError, AttributeError) as error:
            wrong = f"without {error}" if isinstance(error, KeyError) else f"({record.get('uid')}) with a value of another kind: {error}"
            raise ValueError(f"step {record.get('step')} must hold dialogues as runs write them, got one {wrong}") from error
    tables = {"sentences": sentences, "texts": texts, "heard": heard, "scenarios": scenarios, "tasks": tasks}
    return {**{name: table.rows for name, table in tables.items()}, "dialogues": dialogues}
