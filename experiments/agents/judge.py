"""A model that judges the five capabilities of an agent, for dialogues with a user that a model plays.

An unusable answer is asked for again and then counted as missing, never as a low grade.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.evaluated import CAPABILITIES
from analysis.persona_judge import card_text, numbered, seed_of
from analysis.stats import Estimate
from experiments.agents.intervals import ratio
from experiments.agents.players import AgentDialogue, run_all
from simulator.dialogue import Dialogue
from simulator.llm.client import Endpoints, Question, SimulatorError
from simulator.llm.options import of_judge
from simulator.llm.prompts import Unusable, object_of, quoted, record_of, string_of

PROMPTS = Path(__file__).with_name("judge.toml")
LOWEST, HIGHEST = 1, 5
Grades = dict[str, float]
"""By capability, in [0, 1]."""


class CapabilityJudge:
    """Grades dialogues by a model behind `endpoints`; `complaint` holds the first reason of a missing grade."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""
        self._prompts = tomllib.loads(PROMPTS.read_text(encoding="utf-8"))

    async def grade(self, dialogue: Dialogue) -> Grades | None:
        """The grades of a dialogue's agent; None where no answer was usable."""
        texts = {"card": card_text(dialogue), "hidden": quoted(dialogue.scenario.hidden_intention), "conversation": numbered(dialogue)}
        messages = (("system", self._prompts["system"].strip()), ("user", self._prompts["ask"].format(**texts).strip()))
        grade = {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))}
        schema = object_of({"why": {"type": "string"}, **dict.fromkeys(CAPABILITIES, grade)})
        question = Question(name="capabilities", messages=messages, schema=schema, seed=seed_of(messages))
        try:
            return await self.endpoints.ask(question, read_grades)
        except SimulatorError as error:
            self.complaint = self.complaint or of_judge(str(error))
            return None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The grades of an evaluation's dialogues."""

    estimates: dict[str, Estimate]
    """Every capability over the graded dialogues."""
    num_errors: int
    """Dialogues without grades."""
    num_not_sent: int
    """Those of them that were not sent, because so many in a row had got none."""


async def grade_all(
    judge: CapabilityJudge, played: Sequence[AgentDialogue], *, seed: int, should_stop: Callable[[], bool]
) -> Judgement | None:
    """Every capability over the dialogues; None where it was stopped before all were sent."""
    config = judge.endpoints.config
    found = await run_all(
        played,
        lambda one: judge.grade(one.dialogue),
        concurrency=config.concurrency * len(config.urls),
        label="judging",
        is_failure=lambda grades: grades is None,
        should_stop=should_stop,
    )
    if len(found) < len(played) and should_stop():
        return None
    graded = [(one.scenario_id, grades) for one, grades in found if grades is not None]
    estimates = {name: ratio([(scenario, grades[name], 1.0) for scenario, grades in graded], seed=seed) for name in CAPABILITIES}
    return Judgement(estimates=estimates, num_errors=len(played) - len(graded), num_not_sent=len(played) - len(found))


def read_grades(answer: str) -> Grades:
    """The grades in an answer, 1 to 5 rescaled to [0, 1].

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
