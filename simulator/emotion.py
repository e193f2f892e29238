"""The six skills that difficulty asks for, one after the other, and where each family begins to ask.

The emotion rule: how a reply that was heard moves a user, skill by skill, so that every change can be explained.

A reply is worth s = 1 minus what it lacks: each skill that difficulty asks for and the situation calls for costs `cost * weight`
when it is missing. A worth above 0 gains points, one below loses them (more with strictness), impatience drains what does not
help, and a wish that is missed again and again disappoints more each time. All figures stand in `world/skills.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from itertools import chain
from typing import Any

from simulator.dialogue import Dialogue, Speaker
from simulator.listener import Reading, Register, cues_in, facts_told, read, strategies_in
from simulator.scenario import Difficulty, Family, HiddenIntention
from simulator.world import read_toml


class Skill(StrEnum):
    """Cumulative skills, in the order in which they begin to matter."""

    FIT = "fit"
    GROUNDING = "grounding"
    LISTENING = "listening"
    MEMORY = "memory"
    HINTS = "hints"
    REPAIR = "repair"


def skill_table() -> dict[str, Any]:
    """Onsets, costs, shifts and points of `world/skills.toml`."""
    return read_toml("skills")


@cache
def onset(skill: Skill, family: Family) -> float:
    """Scalar strictness at which a family begins to ask for a skill, in [0, 1]."""
    table = skill_table()
    shifts = table["shift"]
    shift = shifts.get(family.intention, {}).get(skill, 0.0) + shifts.get(family.persona, {}).get(skill, 0.0)
    limit = table["max_shift"]
    return float(table["onset"][skill] + min(limit, max(-limit, shift)))


def weight(skill: Skill, family: Family, difficulty: Difficulty) -> float:
    """How much a skill counts: 0 below its onset, rising to 1 over the ramp."""
    return weights(family, difficulty.strictness)[skill]


@lru_cache(maxsize=65536)
def weights(family: Family, strictness: float) -> dict[Skill, float]:
    """`weight` of every skill."""
    ramp = skill_table()["ramp"]
    return {skill: min(1.0, max(0.0, (strictness - onset(skill, family)) / ramp)) for skill in Skill}


@cache
def veiled_reserve(family: Family) -> float:
    """Reserve from which this family's wish is only hinted at: the reserve of the line at the hints skill's onset."""
    return Difficulty.along(onset(Skill.HINTS, family)).reserve


@cache
def meets(family: Family) -> frozenset[str]:
    """Strategies that give the hidden intention what it wants."""
    return frozenset(skill_table()["meets"][family.intention])


@cache
def answers_to_wishes() -> frozenset[str]:
    """Strategies that meet one wish or another."""
    return frozenset().union(*skill_table()["meets"].values())


@cache
def against(family: Family) -> frozenset[str]:
    """Strategies that run against the hidden intention."""
    return frozenset(skill_table()["against"][family.intention])


EXPLORING = frozenset({"question", "restatement"})
REPEATED_AT = 0.7
"""Content-word overlap with an earlier reply from which a reply counts as a repetition."""
VERBATIM_AT = 0.95
"""Overlap from which it counts as the same reply again."""
PUZZLED_BELOW = 0.7
"""Clarity below which the user says that it could not follow."""
MAX_CHANGE = 10
QUANTA = (-10, -5, 5, 10)
"""The changes recorded in SAGE's conversations, nearly without exception."""


@dataclass(frozen=True, kw_only=True)
class Appraisal:
    """One reply weighed by one user."""

    reading: Reading
    shown: Mapping[Skill, bool | None]
    """Whether each skill was shown; None where the situation did not call for it. Does not depend on difficulty's weights."""
    asks_first: bool
    """One of the first two replies, and it explores instead of answering the hints: right where listening is asked for."""
    times_missed: int
    """Replies in a row, with this one, that missed a wish already hinted at; 0 where this one meets it or nothing was hinted."""
    wishes_tried: int
    """How many of the eight wishes the reply would meet."""
    runs_against: bool
    """The reply does the opposite of what the hidden intention wants."""
    limits: Mapping[str, int]
    """How many moves, facts (`cues`) and words are not too much for this reply."""
    scattered: bool
    """More than that at once."""
    unneeded_apology: bool
    worth: float
    """In [-1, 1]; below 0 the reply does harm."""


def appraise(dialogue: Dialogue, reply: str, *, register: Register = Register.OPEN) -> Appraisal:
    """Weighs a reply that is not yet in the dialogue."""
    family = dialogue.scenario.family
    said = [turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER]
    reading = read(reply, dialogue.story, dialogue.replies(), said=said, register=register)
    shown = _skills_shown(dialogue, reading)
    limits = _limits(reading.num_words, register)
    moves = [strategy for strategy in reading.strategies if strategy != "apology"]
    scattered = len(moves) > limits["moves"] or len(reading.cues) > limits["cues"] or reading.num_words > limits["words"]
    appraisal = Appraisal(
        reading=reading,
        shown=shown,
        asks_first=dialogue.num_replies < 2 and shown[Skill.FIT] is False and bool(EXPLORING & set(moves)),
        times_missed=_times_missed(dialogue) if shown[Skill.FIT] is False else 0,
        wishes_tried=len(answers_to_wishes() & set(moves)),
        runs_against=bool(against(family) & set(moves)) and not meets(family) & set(moves),
        limits=limits,
        scattered=scattered,
        unneeded_apology="apology" in reading.strategies and shown[Skill.REPAIR] is None,
        worth=0.0,
    )
    return _with_worth(appraisal, family, dialogue.difficulty)


def _limits(num_words: int, register: Register) -> dict[str, int]:
    """What is not too much: in ordinary language a longer reply may hold more, up to an end."""
    table = skill_table()["limits"]
    if register is Register.WORLD:
        return {name: table[name] for name in ("moves", "cues", "words")}
    further = num_words // table["open"]["words_per_further"]
    return {"moves": table["moves"] + further, "cues": table["cues"] + further, "words": table["open"]["words"]}


def change_of_emotion(appraisal: Appraisal, dialogue: Dialogue, *, momentum: float, quantise: bool) -> int:
    """Points in [-10, 10] that the reply moves the user.

    Args:
        momentum: share of the previous change that carries over, in [0, 1).
        quantise: round to the changes that SAGE's users made (-10, -5, 5, 10).
    """
    points, family, difficulty = skill_table()["points"], dialogue.scenario.family, dialogue.difficulty
    worth, strictness = appraisal.worth, difficulty.strictness
    if worth > 0:
        change = (points["gain"] + points["gain_slope"] * strictness) * worth * points["gain_by_persona"][family.persona]
    else:
        change = (
            points["loss"] * (points["loss_floor"] + points["loss_slope"] * strictness) * worth * points["loss_by_persona"][family.persona]
        )
    change -= points["drain"] * difficulty.impatience * (1.0 - max(0.0, worth))
    change -= disappointment(appraisal, family, difficulty)
    change += momentum * (dialogue.turns[-1].change or 0)
    change -= points["contempt"] * bool(appraisal.reading.contempt)
    if is_rebuff(dialogue):
        doubt = weight(Skill.REPAIR, family, difficulty)
        change += doubt * (min(change, points["rebuff"]) - change)
    bounded = max(-MAX_CHANGE, min(MAX_CHANGE, change))
    return min(QUANTA, key=lambda quantum: abs(quantum - bounded)) if quantise else round(bounded)


def disappointment(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> float:
    """Points that are lost because this is not the first reply in a row to miss the wish: the more, the longer and the less patient.

    Who asks first is excused from that as from the miss itself.
    """
    times = times_again(appraisal)
    if not times:
        return 0.0
    demand = _demands(appraisal, family, difficulty)[Skill.FIT]
    return float(skill_table()["points"]["disappointment"] * difficulty.impatience * times * demand)


def times_again(appraisal: Appraisal) -> int:
    """How often in a row the wish has been missed besides the first time, as far as that is felt."""
    return min(max(0, appraisal.times_missed - 1), int(skill_table()["points"]["longest"]))


def is_rebuff(dialogue: Dialogue) -> bool:
    """Whether a difficult user doubts the agent at the coming reaction, whatever the reply: once or twice a dialogue, by its seed."""
    if weight(Skill.REPAIR, dialogue.scenario.family, dialogue.difficulty) <= 0.0:
        return False
    return dialogue.num_replies + 1 in (3 + dialogue.seed % 2, 6 + dialogue.seed // 2 % 2)


def hint_in(text: str, *, kinds: tuple[str, ...] = ("overt", "veiled")) -> HiddenIntention | None:
    """The hidden intention that a user's turn hints at, if it does."""
    return next((intention for kind, intention in _hints_in(text) if kind in kinds), None)


@lru_cache(maxsize=65536)
def _hints_in(text: str) -> tuple[tuple[str, HiddenIntention], ...]:
    lines = _hint_lines()
    possible = chain.from_iterable(lines[word] for word in {*text.split()} if word in lines)
    return tuple((kind, intention) for _, kind, line, intention in sorted(possible) if line in text)


@cache
def _hint_lines() -> Mapping[str, Sequence[tuple[int, str, str, HiddenIntention]]]:
    """Place, kind, line and intention of each hint, by the longest word within it: whoever says the line says that word."""
    hints = read_toml("phrases")["hints"]
    lines = [(kind, line, HiddenIntention(name)) for name, pools in hints.items() for kind, lines in pools.items() for line in lines]
    by_word: dict[str, list[tuple[int, str, str, HiddenIntention]]] = {}
    for place, (kind, line, intention) in enumerate(lines):
        by_word.setdefault(max(line.split()[1:-1], key=len), []).append((place, kind, line, intention))
    return by_word


def _skills_shown(dialogue: Dialogue, reading: Reading) -> dict[Skill, bool | None]:
    users = [turn for turn in dialogue.turns if turn.speaker is Speaker.USER]
    number = len(users)
    explores = bool(EXPLORING & set(reading.strategies))
    fits = bool(meets(dialogue.scenario.family) & set(reading.strategies))
    kinds = {kind for turn in users for kind, _ in _hints_in(turn.text)}
    explored = explores + sum(bool(EXPLORING & set(strategies_in(past, dialogue.scenario.language))) for past in dialogue.replies())
    hurt = (users[-1].change or 0) < 0
    told = [set(facts_told(turn.text, dialogue.story.facts)) for turn in users]
    return {
        Skill.FIT: fits if kinds else None,
        Skill.GROUNDING: bool(set().union(*told) & set(reading.cues)),
        Skill.LISTENING: explored >= min(number, 2),
        Skill.MEMORY: _remembers(dialogue, told, reading) if number >= 3 else None,
        Skill.HINTS: fits if kinds == {"veiled"} else None,
        Skill.REPAIR: "apology" in reading.strategies if hurt else None,
    }


def _times_missed(dialogue: Dialogue) -> int:
    """How many replies in a row have missed the wish since it was first hinted at, if the coming one misses it, too."""
    wanted, language = meets(dialogue.scenario.family), dialogue.scenario.language
    times, is_hinted = 1, False
    for turn in dialogue.turns:
        if turn.speaker is Speaker.USER:
            is_hinted = is_hinted or bool(_hints_in(turn.text))
        elif is_hinted:
            times = 1 if wanted & set(strategies_in(turn.text, language)) else times + 1
    return times


def _remembers(dialogue: Dialogue, told: Sequence[set[int]], reading: Reading) -> bool:
    """No repetition, and this reply or the one before ties back to what was told before the turn that it answers.

    Args:
        told: facts by the user's turn, three turns or more.
    """
    if reading.similarity >= REPEATED_AT:
        return False
    two_before, before = (set(cues_in(reply, dialogue.story)) for reply in dialogue.replies()[-2:])
    earlier = set().union(*told[:-2])
    return bool((set(reading.cues) & (earlier | told[-2])) - before or (before & earlier) - two_before)


def _with_worth(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Appraisal:
    table, shown = skill_table(), appraisal.shown
    heard_something = bool(appraisal.reading.strategies or appraisal.reading.cues)
    worth, demands = 1.0 if heard_something else 0.0, _demands(appraisal, family, difficulty)
    for skill in (Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY, Skill.REPAIR):
        if shown[skill] is False:
            worth -= table["cost"][skill] * demands[skill]
    side_costs = table["side_costs"]
    if appraisal.runs_against:
        worth -= side_costs["against"] * weight(Skill.FIT, family, difficulty)
    if shown[Skill.FIT] and appraisal.wishes_tried > 1:
        worth -= side_costs["guessing"] * (appraisal.wishes_tried - 1) * weight(Skill.FIT, family, difficulty)
    if appraisal.reading.similarity >= REPEATED_AT:
        worth -= side_costs["verbatim" if appraisal.reading.similarity >= VERBATIM_AT else "repetition"]
    worth -= side_costs["scattered"] * appraisal.scattered
    worth -= side_costs["unneeded_apology"] * appraisal.unneeded_apology
    worth = max(worth, table["worst"])
    understood = appraisal.reading.clarity
    worth = worth * understood - side_costs["garble"] * (1.0 - understood)
    if appraisal.reading.contempt:
        worth = table["contempt"]
    return replace(appraisal, worth=worth)


def _demands(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Mapping[Skill, float]:
    """How much each skill counts for this reply: its weight; who asks first is partly excused from hints, wholly where listening counts."""
    demands = weights(family, difficulty.strictness)
    if not appraisal.asks_first:
        return demands
    excused = max(skill_table()["asking_first"], demands[Skill.LISTENING])
    return {**demands, Skill.FIT: demands[Skill.FIT] * (1.0 - excused)}


def explain(appraisal: Appraisal, family: Family, difficulty: Difficulty, *, rebuff: bool, cue: str) -> str:
    """The user's inner words: what the reply was worth and why, most important first.

    Args:
        cue: the phrase for a fact that was taken up, or "" for none.
    """
    words = read_toml("texts")["thought"]
    shown, worth = appraisal.shown, appraisal.worth
    parts = [words["worth_much" if worth > 0.7 else "worth_some" if worth > 0.2 else "worth_nothing" if worth > -0.2 else "worth_negative"]]
    if appraisal.reading.contempt:
        parts.append(words["contempt"])
    demands = _demands(appraisal, family, difficulty)
    for skill in (Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY, Skill.REPAIR):
        if shown[skill] is not None and demands[skill] > 0:
            parts.append(words[f"{skill}_{'met' if shown[skill] else 'missed'}"])
    is_fit_asked = weights(family, difficulty.strictness)[Skill.FIT] > 0
    flags = {
        "missed_again": disappointment(appraisal, family, difficulty) > 0,
        "guessing": bool(shown[Skill.FIT]) and appraisal.wishes_tried > 1 and is_fit_asked,
        "against": appraisal.runs_against and is_fit_asked,
        "repeated": appraisal.reading.similarity >= REPEATED_AT,
        "scattered": appraisal.scattered,
        "puzzled": appraisal.reading.clarity < PUZZLED_BELOW,
        "unheard": not (appraisal.reading.strategies or appraisal.reading.cues),
        "rebuff": rebuff,
    }
    parts += [words[name] for name, raised in flags.items() if raised]
    return " ".join(parts).format(cue=cue, wish=read_toml("texts")["wish"][family.intention])
