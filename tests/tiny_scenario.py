"""A scenario that names everything and means nothing, and a task in it; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.scenario import Difficulty, Fact, Family, HiddenIntention, Persona, PersonaType, Scenario, Split


def make_scenario(*, scenario_id: str = "s") -> Scenario:
    """A scenario that names everything and means nothing."""
    return Scenario(
        scenario_id=scenario_id,
        family=Family(intention=HiddenIntention.EMPATHY, persona=PersonaType.PASSIVE),
        persona=Persona(name="Ada", age=30, occupation="nurse", persona_type=PersonaType.PASSIVE),
        background="a hard week",
        facts=(Fact(text="my sister left", cue="your sister"),),
        other="sister",
        feelings=("sad",),
        goal="to be heard",
        hidden_intention="wants comfort",
        opening="i had a hard week.",
        language="en",
        split=Split.TRAIN,
    )


@dataclass(frozen=True, kw_only=True)
class AnyTask:
    """The fields of a task that rollouts need."""

    uid: str = "task"
    scenario_id: str = "scenario"
    difficulty: Difficulty = Difficulty(strictness=0.5, reserve=0.5, impatience=0.5)  # noqa: RUF009 (frozen)
    group_size: int = 2
    seed: int = 0
