"""Who the user is and what troubles them: persona, hidden intention, scenario, family and split."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class HiddenIntention(StrEnum):
    """What the user longs for and does not say (the eight kinds of SAGE)."""

    ADVICE = "advice"
    EMPATHY = "empathy"
    LISTENED = "listened"
    PRAISE = "praise"
    REFLECTION = "reflection"
    BOTH_SIDES = "both_sides"
    MOTIVES = "motives"
    NOT_AT_FAULT = "not_at_fault"


class PersonaType(StrEnum):
    """How the user tends to meet others (SAGE's `main_cha`)."""

    NEGATIVE = "negative"
    PASSIVE = "passive"
    AVOIDANT = "avoidant"


class Split(StrEnum):
    """TRAIN is practised on; HELDOUT judges during development; SEALED is opened once, for a confirmatory result."""

    TRAIN = "train"
    HELDOUT = "heldout"
    SEALED = "sealed"


@dataclass(frozen=True, kw_only=True, order=True)
class Family:
    """A task family: what the user wants crossed with how the user is."""

    intention: HiddenIntention
    persona: PersonaType

    def __str__(self) -> str:
        return f"{self.intention}/{self.persona}"

    @classmethod
    def parse(cls, text: str) -> Family:
        """The inverse of `str(family)`."""
        intention, slash, persona = text.partition("/")
        if not slash:
            raise ValueError(f"family must look like 'advice/negative', got {text!r}")
        return cls(intention=HiddenIntention(intention), persona=PersonaType(persona))


FAMILIES = tuple(Family(intention=i, persona=p) for i in HiddenIntention for p in PersonaType)
"""All 24 families, in a fixed order."""


@dataclass(frozen=True, kw_only=True)
class Persona:
    """The person behind the user's words."""

    name: str
    age: int
    occupation: str
    persona_type: PersonaType
    traits: tuple[str, ...] = ()
    """What others would call this person (SAGE's `cha_group`); none in the built-in world."""
    card: str = ""
    """The person at length, where a profile says more than the fields above."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something the user can tell, and the short phrase by which an agent shows that it heard it."""

    text: str
    cue: str
    """As an agent would say it ("the piano"); its last word occurs in `text`."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One situation a simulated user brings. `hidden_intention` is never shown to the agent."""

    scenario_id: str
    family: Family
    persona: Persona
    background: str
    facts: tuple[Fact, ...]
    """The opening's fact first, then what the user may add, in the order of the file."""
    other: str
    """The other person in it, as said after my / your ("sister")."""
    feelings: tuple[str, ...]
    goal: str
    hidden_intention: str
    opening: str
    language: str
    split: Split

    def to_dict(self) -> dict:
        """A JSON-able record; `from_dict` reads it back."""
        return {**asdict(self), "family": str(self.family)}

    @classmethod
    def from_dict(cls, record: dict) -> Scenario:
        """Reads what `to_dict` wrote."""
        persona = {
            **record["persona"],
            "persona_type": PersonaType(record["persona"]["persona_type"]),
            "traits": tuple(record["persona"].get("traits", ())),
        }
        return cls(
            **{
                **record,
                "family": Family.parse(record["family"]),
                "persona": Persona(**persona),
                "facts": tuple(Fact(**fact) for fact in record["facts"]),
                "feelings": tuple(record["feelings"]),
                "split": Split(record["split"]),
            }
        )
