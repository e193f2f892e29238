"""A model that judges the five capabilities of an agent, for dialogues with a user that a model plays.

An answer that is not what was asked for is asked for again, and then counted as missing; it is never a low grade.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from analysis.evaluated import CAPABILITIES
from analysis.persona_judge import card_text, numbered, of_judge, seed_of
from analysis.stats import Estimate
from experiments.agents.players import PATIENCE, Played
from experiments.agents.scores import ratio
from simulator.dialogue import Dialogue
from simulator.files import Progress
from simulator.llm.client import Endpoints, Question, SimulatorError
from simulator.llm.prompts import Unusable, object_of, quoted, record_of, string_of

PROMPTS = Path(__file__).with_name("judge.toml")
LOWEST, HIGHEST = 1, 5
Grades = dict[str, float]
"""By capability, in [0, 1]."""


class CapabilityJudge:
    """Asks a model.

    Args:
        endpoints: where; why it first gave nothing stands in `complaint`.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""

    async def grades(self, dialogue: Dialogue) -> Grades | None:
        """The grades of a dialogue's agent; None where no answer was of use."""
        words = prompts()
        texts = {"card": card_text(dialogue), "hidden": quoted(dialogue.scenario.hidden_intention), "conversation": numbered(dialogue)}
        messages = (("system", words["system"].strip()), ("user", words["ask"].format(**texts).strip()))
        grade = {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))}
        schema = object_of({"why": {"type": "string"}, **dict.fromkeys(CAPABILITIES, grade)})
        question = Question(name="capabilities", messages=messages, schema=schema, seed=seed_of(messages))
        try:
            return await self.endpoints.ask(question, read_grades)
        except SimulatorError as error:
            self.complaint = self.complaint or of_judge(str(error))
            return None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a judge found in the dialogues of an evaluation."""

    estimates: dict[str, Estimate]
    """Every capability over the dialogues that were graded, with its interval."""
    num_errors: int
    """Dialogues that got no grades, for whatever reason."""
    num_not_sent: int
    """Those of them that were not sent, because so many in a row had got none."""


async def judged(judge: CapabilityJudge, played: Sequence[Played], *, seed: int, should_stop: Callable[[], bool]) -> Judged | None:
    """Every capability over the dialogues; after `PATIENCE` in a row that got no grades none is sent any more.

    Args:
        should_stop: asked before each dialogue; after a yes none is sent any more.

    Returns:
        None where it should stop before all were sent.
    """
    config = judge.endpoints.config
    places, num_sent, in_a_row, is_stopped = asyncio.Semaphore(config.concurrency * len(config.urls)), 0, 0, False
    with Progress("judging", len(played)) as bar:

        async def one(item: Played) -> Grades | None:
            nonlocal num_sent, in_a_row, is_stopped
            async with places:
                is_stopped = is_stopped or should_stop()
                if is_stopped or in_a_row >= PATIENCE:
                    return None
                num_sent += 1
                grades = await judge.grades(item.dialogue)
                in_a_row = 0 if grades is not None else in_a_row + 1
            bar.add()
            return grades

        found = await asyncio.gather(*map(one, played))
    if is_stopped:
        return None
    pairs = [(item, grades) for item, grades in zip(played, found, strict=True) if grades is not None]
    estimates = {
        name: ratio(
            [(item.task.scenario_id, i, 0, item.task.strictness, grades[name], 1.0) for i, (item, grades) in enumerate(pairs)], seed=seed
        )
        for name in CAPABILITIES
    }
    return Judged(estimates=estimates, num_errors=len(played) - len(pairs), num_not_sent=len(played) - num_sent)


def read_grades(answer: str) -> Grades:
    """The grades in an answer, 1 to 5 made 0 to 1.

    Raises:
        Unusable: the answer is no such JSON, or a grade is missing or out of range.
    """
    record = record_of(answer)
    string_of(record, "why")
    grades: Grades = {}
    for name in CAPABILITIES:
        grade: Any = record.get(name)
        if isinstance(grade, bool) or not isinstance(grade, int) or not LOWEST <= grade <= HIGHEST:
            raise Unusable(f"{name} must be a whole number from {LOWEST} to {HIGHEST}, got {grade!r}")
        grades[name] = (grade - LOWEST) / (HIGHEST - LOWEST)
    return grades


@cache
def prompts() -> dict[str, Any]:
    """The judge's prompts."""
    with PROMPTS.open("rb") as file:
        return tomllib.load(file)
