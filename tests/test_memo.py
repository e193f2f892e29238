"""Kept answers belong to the facts that they were given for."""

from __future__ import annotations

from simulator.listener import by_facts
from simulator.scenario import Fact


def facts(*cues: str) -> tuple[Fact, ...]:
    return tuple(Fact(text=f"I lost {cue}.", cue=cue) for cue in cues)


def test_an_answer_is_worked_out_once_for_each_of_its_texts_and_facts():
    asked = []

    @by_facts(maxsize=10)
    def answer(given: tuple[Fact, ...], text: str) -> str:
        asked.append(text)
        return given[0].cue + text

    first, second = facts("the piano"), facts("the key")
    assert [answer(first, "a"), answer(first, "a"), answer(first, "b"), answer(second, "a")] == [
        "the pianoa",
        "the pianoa",
        "the pianob",
        "the keya",
    ]
    assert asked == ["a", "b", "a"]


def test_facts_that_are_gone_do_not_leave_their_answers_to_others():
    @by_facts(maxsize=3)
    def answer(given: tuple[Fact, ...]) -> str:
        return given[0].cue

    assert [answer(facts(f"thing {k}")) for k in range(50)] == [f"thing {k}" for k in range(50)]
