"""Recorded dialogues with the five steps to each change, for runs whose users followed the embedded rule."""

from __future__ import annotations

from analysis.packing import Record
from analysis.runs import Run
from simulator.dialogue import Dialogue, Outcome, Speaker
from simulator.explain import TITLES, five_steps, replay, user_settings
from simulator.world import load_bank

STEP_TITLES = TITLES


class Stepwise:
    """Explains the dialogues of one run with the settings of its users.

    Raises:
        ValueError: its users followed no rule.
    """

    def __init__(self, run: Run) -> None:
        self._config = user_settings(run.config.get("simulator") or {})

    def explained(self, record: Record) -> Record:
        """The record with `steps` on the user's turns; a turn whose change the rule no longer gives has none.

        Raises:
            ValueError: it is no dialogue of this world.
        """
        if record["outcome"] == Outcome.ERROR:
            return record
        try:
            dialogue = Dialogue.from_dict(record, scenario=load_bank().scenario(record["scenario_id"]))
            answers = [turn for turn in replay(dialogue, self._config) if turn.explanation is not None]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"step {record.get('step')} must hold dialogues of this world: {error}; leave out --steps") from error
        turns = [dict(turn) for turn in record["turns"]]
        places = [i for i, turn in enumerate(turns) if turn["speaker"] == Speaker.USER][1:]
        for place, answer in zip(places, answers, strict=True):
            if answer.is_same and answer.explanation is not None:
                turns[place]["steps"] = [text for _, text in five_steps(answer.explanation).named()]
        return {**record, "turns": turns}
