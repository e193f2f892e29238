"""A model that judges the five capabilities of an agent, for dialogues with a user that a model plays.

An unusable answer is asked for again and then counted as missing, never as a low grade.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.evaluated import CAPABILITIES
from analysis.persona_judge import card_text, numbered, seed_of
from analysis.stats import Estimate
from experiments.agents.players import AgentDialogue, run_all
from experiments.agents.scores import ratio
from simulator.llm.client import Endpoints, Question, SimulatorError
from simulator.llm.prompts import Unusable, object_of, quoted, record_of, string_of
from simulator.options import of_judge


class CapabilityJudge:
    """Grades dialogues by a model behind `endpoints`."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints, self._complaint = endpoints, ""
        self._prompts = tomllib.loads(Path(__file__).with_name("judge.toml").read_text(encoding="utf-8"))

    async def grade(self, played: AgentDialogue) -> dict[str, float] | None:
        """The grades of a dialogue's agent by capability, [0, 1]; None where no answer was usable."""
        dialogue = played.dialogue
        texts = {"card": card_text(dialogue), "hidden": quoted(dialogue.scenario.hidden_intention), "conversation": numbered(dialogue)}
        messages = (("system", self._prompts["system"].strip()), ("user", self._prompts["ask"].format(**texts).strip()))
        grade = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        schema = object_of({"why": {"type": "string"}, **dict.fromkeys(CAPABILITIES, grade)})
        question = Question(name="capabilities", messages=messages, schema=schema, seed=seed_of(messages))
        try:
            return await self.endpoints.ask(question, read_grades)
        except SimulatorError as error:
            self._complaint = self._complaint or of_judge(str(error))
            return None

    async def grade_all(
        self, played: Sequence[AgentDialogue], *, seed: int, should_stop: Callable[[], bool]
    ) -> tuple[dict[str, Estimate] | None, dict[str, Any]]:
        """Every capability over the dialogues, None where it was stopped before all were sent.

        Returns:
            Also the facts for `agent.json`: which model judged, and how many dialogues got no grades and why; or why none were judged.
        """
        config = self.endpoints.config
        found = await run_all(
            played,
            self.grade,
            concurrency=config.concurrency * len(config.urls),
            label="judging",
            is_failure=lambda grades: grades is None,
            should_stop=should_stop,
        )
        if len(found) < len(played) and should_stop():
            return None, {"why_not": "interrupted"}
        graded = [(one.scenario_id, grades) for one, grades in found if grades is not None]
        about: dict[str, Any] = {"judge": config.model, "num_errors": len(played) - len(graded)}
        if about["num_errors"]:
            about |= {"num_not_sent": len(played) - len(found), "complaint": self._complaint}
        return {name: ratio([(scenario, grades[name], 1.0) for scenario, grades in graded], seed=seed) for name in CAPABILITIES}, about


def read_grades(answer: str) -> dict[str, float]:
    """The grades in an answer, 1 to 5 rescaled to [0, 1].

    Raises:
        Unusable: the answer is no such JSON, or a grade is missing or out of range.
    """
    record = record_of(answer)
    string_of(record, "why")
    for name in CAPABILITIES:
        if type(record.get(name)) is not int or not 1 <= record[name] <= 5:
            raise Unusable(f"{name} must be a whole number from 1 to 5, got {record.get(name)!r}")
    return {name: (record[name] - 1) / 4 for name in CAPABILITIES}
