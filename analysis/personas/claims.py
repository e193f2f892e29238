"""What a line claims about who says it, read by plain rules, and whether that agrees with a card or with another line.

Heard are names, ages, years that take an age, occupations, and everything that the built-in world lets one kind of user say: the facts of
its events, the hints of its wishes and the reactions of its persona types. What is not heard claims nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache

from simulator.scenario import Scenario
from simulator.world import load_bank, read_toml

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SENTENCE = re.compile(r"(?<=[.!?])\s+")
NUMBER = r"(\d{1,3}|[a-z]+(?:[- ][a-z]+)?)"
AGE = re.compile(rf"\b(?:i am|i'm|i have turned|i turned|i just turned) {NUMBER}(?: years? old\b|(?=[.,;!?]|$))")
SPAN = re.compile(rf"\bi (?:have|had|was|worked|lived)\b[^.!?]{{0,60}}?\bfor {NUMBER} years\b")
NAME = re.compile(r"\b(?:[Mm]y name is|[Cc]all me|I am|I'm) ([A-Z][a-z]+)\b")
OCCUPATION = re.compile(r"\bI(?: am|'m| work as) an? ([a-z' -]+?)(?= and\b| who\b| at\b| in\b| here\b|[.,;!?]|$)")
OWN = re.compile(r"\bmy (?:own |little |youngest |eldest |oldest |late )?([a-z]+)")
LEAST_AGE = {
    **dict.fromkeys(("grandson", "granddaughter", "grandchild", "grandchildren", "grandsons", "granddaughters"), 34),
    **dict.fromkeys(("son", "daughter", "sons", "daughters", "children", "wife", "husband"), 17),
    **dict.fromkeys(("retirement", "pension"), 45),
}
"""Years without which hardly anybody has such a relative, or draws such money."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Values claimed by kind; an empty set claims nothing, several leave it open which."""

    name: frozenset[str] = frozenset()
    age: frozenset[int] = frozenset()
    occupation: frozenset[str] = frozenset()
    event: frozenset[str] = frozenset()
    """Events of the built-in world in which somebody may say so."""
    wish: frozenset[str] = frozenset()
    """Hidden intentions of those who hint so."""
    manner: frozenset[str] = frozenset()
    """Persona types of those who react so."""
    least_age: int = 0
    """Years that it takes to say so."""


def claims_in(line: str) -> list[Claims]:
    """What each sentence of a line claims, without those that claim nothing."""
    return [claims for sentence in SENTENCE.split(line.strip()) if (claims := _claims(sentence)) != Claims()]


def card_of(scenario: Scenario) -> Claims:
    """What the card of a user of the built-in world says of the same things."""
    persona = scenario.persona
    return Claims(
        name=frozenset({persona.name}),
        age=frozenset({persona.age}),
        occupation=frozenset({persona.occupation}),
        event=frozenset({event_of(scenario)}),
        wish=frozenset({scenario.family.intention.value}),
        manner=frozenset({persona.persona_type.value}),
    )


def event_of(scenario: Scenario) -> str:
    """The event that a scenario tells of: the middle of its id, or the id where it has none."""
    parts = scenario.scenario_id.split("/")
    return parts[1] if len(parts) == 3 else scenario.scenario_id


def conflicts(claims: Iterable[Claims], others: Iterable[Claims]) -> tuple[str, ...]:
    """The kinds of claim in which the first disagree with the second, each once."""
    seconds = list(others)
    return tuple(dict.fromkeys(kind for one in claims for other in seconds for kind in _disagreements(one, other)))


def _disagreements(one: Claims, other: Claims) -> list[str]:
    kinds = [kind for kind in _SETS if getattr(one, kind) and getattr(other, kind) and not _agree(kind, one, other)]
    too_young = (one.age and max(one.age) < other.least_age) or (other.age and max(other.age) < one.least_age)
    return [*kinds, "years"] if too_young else kinds


_SETS = tuple(field.name for field in fields(Claims) if field.name != "least_age")


def _agree(kind: str, one: Claims, other: Claims) -> bool:
    mine, theirs = getattr(one, kind), getattr(other, kind)
    if kind == "occupation":
        # Who calls herself a nurse may be a ward nurse on her card.
        mine, theirs = ({job.split()[-1] for job in jobs} for jobs in (mine, theirs))
    return bool(mine & theirs)


def _claims(sentence: str) -> Claims:
    lower = sentence.lower()
    plain = sentence.strip()
    names, jobs = _people()
    said = {name for name in NAME.findall(sentence) if name in names}
    ages = {age for text in AGE.findall(lower) if (age := number_of(text)) is not None and 5 <= age <= 110}
    spans = [span for text in SPAN.findall(lower) if (span := number_of(text)) is not None]
    relatives = [LEAST_AGE[word] for word in OWN.findall(lower) if word in LEAST_AGE]
    works = {job for text in OCCUPATION.findall(sentence) if (job := text.lower().strip()) in jobs}
    event, wish, manner = (table.get(plain, frozenset()) for table in _world())
    return Claims(
        name=frozenset(said),
        age=frozenset(ages),
        occupation=frozenset(works),
        event=event,
        wish=wish,
        manner=manner,
        least_age=max([*spans, *relatives], default=0),
    )


def number_of(text: str) -> int | None:
    """A number in figures or in words below a hundred; None for anything else."""
    if text.isdigit():
        return int(text)
    words = text.replace("-", " ").split()
    tens = 10 * (TENS.index(words[0]) + 2) if words[0] in TENS else None
    if tens is not None:
        return tens + (ONES.index(words[1]) if len(words) == 2 and words[1] in ONES[1:10] else 0)
    return ONES.index(words[0]) if words[0] in ONES else None


@cache
def _people() -> tuple[frozenset[str], frozenset[str]]:
    """Names and occupations of the built-in world's people."""
    people = [scenario.persona for scenario in load_bank().by_id.values()]
    return frozenset(person.name for person in people), frozenset(person.occupation for person in people)


@cache
def _world() -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """Sentences of the built-in world -> the events, wishes and persona types that have them."""
    events: dict[str, set[str]] = {}
    for scenario in load_bank().by_id.values():
        for fact in scenario.facts:
            _add(events, fact.text, event_of(scenario))
    wishes: dict[str, set[str]] = {}
    for intention, pools in read_toml("phrases")["hints"].items():
        for line in (line for pool in pools.values() for line in pool):
            _add(wishes, line, intention)
    manners: dict[str, set[str]] = {}
    for group in ("reactions", "reactions_by_state"):
        for persona, pools in read_toml("phrases")[group].items():
            for line in (line for pool in pools.values() for line in pool):
                _add(manners, line, persona)
    frozen = [{sentence: frozenset(owners) for sentence, owners in table.items()} for table in (events, wishes, manners)]
    return frozen[0], frozen[1], frozen[2]


def _add(table: dict[str, set[str]], text: str, owner: str) -> None:
    for sentence in SENTENCE.split(text):
        table.setdefault(sentence, set()).add(owner)
