"""All dialogues of an evaluation, several at once, each written as it ends; what is there already is not played again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.runs import DIALOGUES, THOUGHTS, read_lines
from analysis.transcripts import HELD_OUT
from experiments.agents.players import Played, Player
from experiments.agents.setting import Setting
from experiments.evaluate import EvaluationTask
from experiments.recorder import cut_back, dialogue_record
from simulator.dialogue import Dialogue, Outcome
from simulator.files import Progress, jsonable
from simulator.scenario import Scenario

PATIENCE = 20
"""Broken dialogues in a row after which no further one is begun: whoever broke them is gone, and each may cost minutes of waiting."""

Key = tuple[str, int]
"""A task's uid and a sibling's number."""


class Dialogues:
    """The dialogues of an evaluation's folder.

    Args:
        samples: dialogues with each user.
    """

    def __init__(self, folder: Path, setting: Setting, *, samples: int) -> None:
        self.path = folder / DIALOGUES
        self._setting = setting
        self.tasks = {(task.uid, sibling): (task, sibling) for task in setting.tasks() for sibling in range(samples)}

    def resume(self) -> dict[Key, Played]:
        """What was played before; dialogues that broke are forgotten, to be played again."""
        cut_back(self.path, lambda record: record["outcome"] != Outcome.ERROR)
        return self.sound()

    def sound(self) -> dict[Key, Played]:
        """What was played and did not break."""
        found = {(played.task.uid, played.sibling): played for played in self.read()}
        return {key: played for key, played in found.items() if played.dialogue.outcome is not Outcome.ERROR}

    def read(self) -> Iterator[Played]:
        """The recorded dialogues, in the order in which they ended.

        Raises:
            ValueError: a line is no dialogue of this evaluation.
        """
        for record in read_lines(self.path):
            key = (record.get("uid"), record.get("sibling"))
            if key not in self.tasks:
                raise ValueError(f"{self.path} must hold dialogues of this evaluation, got {record.get('uid')!r}")
            task, sibling = self.tasks[key]
            dialogue = Dialogue.from_dict(record, scenario=self._setting.bank.scenario(task.scenario_id))
            yield Played(task=task, sibling=sibling, dialogue=dialogue, thoughts=tuple(record.get(THOUGHTS, ())))

    def append(self, played: Played) -> None:
        """Writes one more, so that it is not lost whatever comes."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(jsonable(as_record(played)), ensure_ascii=False) + "\n")


def as_record(played: Played) -> dict[str, Any]:
    """A line of `dialogues.jsonl`, in the format of a run's."""
    facts = {"step": 0, "kind": HELD_OUT, "uid": played.task.uid, "sibling": played.sibling, "strictness": played.task.strictness}
    thoughts = {THOUGHTS: list(played.thoughts)} if played.thoughts else {}
    return dialogue_record(played.dialogue, **facts, **thoughts)


async def play_all(
    player: Player,
    dialogues: Dialogues,
    missing: Sequence[tuple[EvaluationTask, int]],
    *,
    scenarios: Mapping[str, Scenario],
    concurrency: int,
    num_before: int,
    should_stop: Callable[[], bool],
) -> list[Played]:
    """Plays what is missing, in order, so many at a time.

    Args:
        num_before: dialogues that were there already, for the bar.
        should_stop: asked before each dialogue; after a yes none is begun any more.

    Returns:
        What was played, in the order in which it ended.
    """
    waiting, done, in_a_row = iter(missing), list[Played](), 0
    with Progress("dialogues", num_before + len(missing), before=num_before) as bar:

        async def play_on() -> None:
            nonlocal in_a_row
            for task, sibling in waiting:
                if should_stop() or in_a_row >= PATIENCE:
                    return
                played = await player.play(scenarios[task.scenario_id], task, sibling)
                dialogues.append(played)
                done.append(played)
                in_a_row = in_a_row + 1 if played.dialogue.outcome is Outcome.ERROR else 0
                bar.add()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(missing))):
                tasks.create_task(play_on())
    return done
