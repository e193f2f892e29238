"""Scenarios: persona, hidden intention, family and split; and difficulty: three axes and the line of scalar strictness through them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import pairwise


class HiddenIntention(StrEnum):
    """The user's unspoken wish (the eight kinds of SAGE)."""

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
    """TRAIN is for training, HELDOUT for evaluation during development, SEALED for one confirmatory result, PRESSURE for users who press.

    The built-in bank holds the first three; `simulator.pressure` has the last.
    """

    TRAIN = "train"
    HELDOUT = "heldout"
    SEALED = "sealed"
    PRESSURE = "pressure"


@dataclass(frozen=True, kw_only=True, order=True)
class Family:
    """A task family: a hidden intention crossed with a persona type."""

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
    """The simulated person."""

    name: str
    age: int
    occupation: str
    persona_type: PersonaType
    traits: tuple[str, ...] = ()
    """Traits of character (SAGE's `cha_group`); none in the built-in world."""
    card: str = ""
    """The person at length, from a profile."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something the user can mention, and the short phrase by which an agent takes it up."""

    text: str
    cue: str
    """As an agent would say it ("the piano"); its last word occurs in `text`."""


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """How a user presses the agent to agree with what is false or harmful."""

    pattern: str
    """One of the patterns of `simulator.pressure`."""
    claim: str
    """What the user wants to hear confirmed, as a sentence."""
    script: tuple[str, ...]
    """What the user says after each reply, in turn; the last lines come round again."""
    agrees: tuple[str, ...]
    """Expressions over one clause of plain text by which a reply states the claim itself."""
    instruction: str
    """For a model that plays the user."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One situation a simulated user brings. `hidden_intention` is never shown to the agent."""

    scenario_id: str
    family: Family
    persona: Persona
    background: str
    facts: tuple[Fact, ...]
    """The opening's fact first, then further ones, in the order of the file."""
    other: str
    """The other person in it, as said after my / your ("sister")."""
    feelings: tuple[str, ...]
    goal: str
    hidden_intention: str
    opening: str
    language: str
    split: Split
    pressure: Pressure | None = None
    """None for users who do not press."""

    def to_dict(self) -> dict:
        """A JSON-able record; `from_dict` reads it."""
        record = {**asdict(self), "family": str(self.family)}
        return {key: value for key, value in record.items() if key != "pressure" or value}

    @classmethod
    def from_dict(cls, record: dict) -> Scenario:
        """The inverse of `to_dict`."""
        persona, kind = record["persona"], PersonaType(record["persona"]["persona_type"])
        parts = {
            "family": Family.parse(record["family"]),
            "persona": Persona(**{**persona, "persona_type": kind, "traits": tuple(persona.get("traits", ()))}),
            "facts": tuple(Fact(**fact) for fact in record["facts"]),
            "feelings": tuple(record["feelings"]),
            "split": Split(record["split"]),
        }
        if pressure := record.get("pressure"):
            parts["pressure"] = Pressure(**{**pressure, **{name: tuple(pressure[name]) for name in ("script", "agrees")}})
        return cls(**{**record, **parts})


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """A point in the cube [0, 1]^3; higher asks for more skill, it does not merely pay less.

    Raises:
        ValueError: an axis is outside [0, 1].
    """

    strictness: float
    """How much skill a reply must show before it moves the user."""
    reserve: float
    """How little the user says of the hidden intention and of what was felt."""
    impatience: float
    """How fast emotion drains while nothing helps."""

    def __post_init__(self) -> None:
        for axis in fields(self):
            value = getattr(self, axis.name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"difficulty.{axis.name} must be in [0, 1], got {value!r}")

    @classmethod
    def along(cls, d: float) -> Difficulty:
        """The difficulty at scalar strictness `d` in [0, 1].

        Piecewise linear through all zeros at 0, VANILLA at 0.35, CHALLENGING at 0.75 and all ones at 1.
        On this line the strictness axis equals `d`.
        """
        if not 0.0 <= d <= 1.0:
            raise ValueError(f"strictness must be in [0, 1], got {d!r}")
        if d == 1.0:
            return cls(strictness=1.0, reserve=1.0, impatience=1.0)
        # By hand: a teacher calls this for every task, and numpy would take ten times as long for three numbers.
        knots = ((0.0, 0.0, 0.0), tuple(vars(VANILLA).values()), tuple(vars(CHALLENGING).values()), (1.0, 1.0, 1.0))
        start, end = next((low, high) for low, high in pairwise(knots) if low[0] <= d < high[0])
        slopes = ((high - low) / (end[0] - start[0]) for low, high in zip(start, end, strict=True))
        strictness, reserve, impatience = (slope * (d - start[0]) + low for slope, low in zip(slopes, start, strict=True))
        return cls(strictness=strictness, reserve=reserve, impatience=impatience)

    def to_dict(self) -> dict[str, float]:
        """The axes by name."""
        return asdict(self)


VANILLA = Difficulty(strictness=0.35, reserve=0.25, impatience=0.3)
CHALLENGING = Difficulty(strictness=0.75, reserve=0.75, impatience=0.7)
"""RLVER's two environments (arXiv 2507.03112), placed on our axes by their prompts."""
