"""Dialogues for the supervised prior: a demonstrator who mostly hands out solutions and now and then shows one of the skills.

Only training scenarios are used. What the demonstrator does at each turn is drawn independently, so every skill is there to be found
by exploration while all of them together hardly ever occur.

The thought before each demonstrated reply: what the user hints at, what of the told is taken up, which move follows.

A thought is read off a reply that the demonstrator has made anyway, so the one who thinks has the habits and skills of the one who does
not. It names the wish even where the reply passes it over: naming is what makes a hint's meaning one word, from which a move is one
further step. Its vocabulary is closed and it is short, for a small model and a small budget of tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from policy.config import DemonstrationConfig
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import hint_in, skill_table, veiled_reserve
from simulator.listener import Register, cue_heads, facts_told, strategies_in
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Fact, Scenario
from simulator.scripted import fill, stem
from simulator.world import read_toml

HABITS = {
    "suggestion": 0.5,
    "reassurance": 0.09,
    "information": 0.05,
    "hedging": 0.03,
    "referral": 0.04,
    "self_disclosure": 0.04,
    "question": 0.07,
    "restatement": 0.03,
    "reflection": 0.03,
    "listening": 0.02,
    "praise": 0.02,
    "siding": 0.02,
    "motives": 0.02,
    "both_sides": 0.02,
    "guided_reflection": 0.02,
}
"""How often the demonstrator makes each move when it follows its habits: mostly solutions, as a chat model before training."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A dialogue with, per reply, the phrases that were taken from what the user said."""

    dialogue: Dialogue
    copied: tuple[tuple[str, ...], ...] = field(default=())
    """One tuple per agent turn."""


def demonstrate(config: DemonstrationConfig, scenarios: Sequence[Scenario], *, seed: int) -> Iterator[Demonstration]:
    """An endless stream of demonstrations over shuffled scenarios, at all difficulties alike."""
    chance = random.Random(seed)
    user = RuleUser(RuleUserConfig(register=Register.WORLD))
    while True:
        for scenario in chance.sample(scenarios, len(scenarios)):
            if chance.random() < config.collage_prob:
                scenario = _collage(scenario, scenarios, chance)
            yield _demonstration(config, scenario, user, chance)


def _collage(scenario: Scenario, scenarios: Sequence[Scenario], chance: random.Random) -> Scenario:
    """The scenario with facts of other events about things of yet others, no two about the same thing; another person is in the opening."""
    facts: list[Fact] = []
    other = chance.choice(scenarios).other
    heads = set(other.split())
    while len(facts) < len(scenario.facts):
        donor, lender = chance.choice(scenarios), chance.choice(scenarios)
        fact, thing = chance.choice(donor.facts), chance.choice(lender.facts)
        (head,), (other_head,) = cue_heads((fact,)), cue_heads((thing,))
        if other_head in heads or head.endswith("s") != other_head.endswith("s"):
            continue
        named = _mine(donor.other).search(fact.text)
        if facts or (named and head not in donor.other):
            told = _about(fact, head, other_head)
            facts.append(told if facts else replace(told, text=_mine(donor.other).sub(rf"\1 {other}", told.text)))
            heads.add(other_head)
    return replace(scenario, facts=tuple(facts), other=other, opening=facts[0].text)


def _about(fact: Fact, head: str, other_head: str) -> Fact:
    """The fact with another thing in the place of its own."""
    text, cue = (_whole(head).sub(other_head, words) for words in (fact.text, fact.cue))
    return Fact(text=text[0].upper() + text[1:], cue=cue)


@cache
def _mine(other: str) -> re.Pattern[str]:
    return re.compile(rf"\b([Mm]y) {other}\b")


@cache
def _whole(word: str) -> re.Pattern[str]:
    return re.compile(rf"\b{word}\b", re.IGNORECASE)


def _demonstration(config: DemonstrationConfig, scenario: Scenario, user: RuleUser, chance: random.Random) -> Demonstration:
    dialogue = user.begin(scenario, _difficulty(config, scenario, chance), seed=chance.getrandbits(32))
    copied: list[tuple[str, ...]] = []
    while dialogue.outcome is None and dialogue.num_replies < config.num_replies:
        text, phrases = _reply(config, dialogue, chance)
        reaction = user.answer(dialogue, text)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=text), reaction.turn, outcome=reaction.outcome)
        copied.append(phrases)
    return Demonstration(dialogue=dialogue, copied=tuple(copied))


def _difficulty(config: DemonstrationConfig, scenario: Scenario, chance: random.Random) -> Difficulty:
    difficulty, kind = Difficulty.along(chance.random()), chance.random()
    if kind < config.open_prob:
        return replace(difficulty, reserve=0.0)
    if kind < config.open_prob + config.veiled_prob:
        return replace(difficulty, reserve=chance.uniform(veiled_reserve(scenario.family), 1.0))
    return difficulty


def _reply(config: DemonstrationConfig, dialogue: Dialogue, chance: random.Random) -> tuple[str, tuple[str, ...]]:
    """A reply and the phrases in it that come from the user."""
    scenario = dialogue.scenario
    cue = _cue(config, dialogue, chance) if chance.random() < config.ground_prob else ""
    named = [
        feeling for feeling in scenario.feelings if any(feeling in turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER)
    ]
    feeling = named[-1] if named else "hurt"
    text = _wording(config, _strategy(config, dialogue, chance), dialogue, chance, cue=cue, feeling=feeling)
    if (dialogue.turns[-1].change or 0) < 0 and chance.random() < config.repair_prob:
        text = f"{_wording(config, 'apology', dialogue, chance, cue='', feeling=feeling)} {text}"
    return text, tuple(phrase for phrase in (cue, feeling, _briefly(scenario.other)) if phrase and phrase in text)


def _strategy(config: DemonstrationConfig, dialogue: Dialogue, chance: random.Random) -> str:
    if dialogue.num_replies < 2 and chance.random() < config.explore_prob:
        return chance.choice(("question", "question", "restatement"))
    kind, wish = _latest_hint(dialogue)
    if wish and chance.random() < (config.fit_overt_prob if kind == "overt" else config.fit_veiled_prob):
        return skill_table()["meets"][wish][0]
    return chance.choices(list(HABITS), weights=list(HABITS.values()))[0]


def _latest_hint(dialogue: Dialogue) -> tuple[str | None, str | None]:
    for turn in reversed(dialogue.turns):
        if turn.speaker is Speaker.USER:
            for kind in ("overt", "veiled"):
                wish = hint_in(turn.text, kinds=(kind,))
                if wish:
                    return kind, wish
    return None, None


def _cue(config: DemonstrationConfig, dialogue: Dialogue, chance: random.Random) -> str:
    """What the latest turn told, as "the jam"; or, from the third reply on, what the turn two before it told, as "that jam".

    Which thing it is follows from the determiner and its place alone: a small model learns to read one place, not to mix several. Two
    turns before, because the last reply then did not name it: neither "the" (one turn before) nor "that" (three before) did.
    """
    facts = dialogue.scenario.facts
    told = [facts_told(turn.text, facts) for turn in dialogue.turns if turn.speaker is Speaker.USER]
    if len(told) >= 3 and told[-3] and told[-2] and chance.random() < config.earlier_prob:
        return _pointing_back(facts[told[-3][-1]].cue)
    latest = next(told_now for told_now in reversed(told) if told_now)
    return _plainly(facts[latest[-1]].cue)


def _plainly(cue: str) -> str:
    """The cue with "the" unless it is the user's own: a small model that first has to choose between eight determiners loses the noun."""
    determiner, rest = cue.split(" ", 1)
    return cue if determiner == "your" else f"the {rest}"


def _pointing_back(cue: str) -> str:
    """The cue as one takes up what was said before: "that jam", "those letters"."""
    noun = cue.split(" ", 1)[1]
    return f"{'those' if noun.endswith('s') and not noun.endswith('ss') else 'that'} {noun}"


def _briefly(other: str) -> str:
    """The other person as one speaks of them once they were named: "friend" for "choir friend", one word for a small model to take up."""
    return other.split()[-1]


def _wording(config: DemonstrationConfig, strategy: str, dialogue: Dialogue, chance: random.Random, *, cue: str, feeling: str) -> str:
    scenario = dialogue.scenario
    pool = read_toml("moves")[strategy]["grounded" if cue else "plain"]
    if not any(scenario.other in turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER):
        pool = [line for line in pool if "{other" not in line] or pool
    elif chance.random() < config.name_prob:
        pool = [line for line in pool if "{other" in line] or pool
    pool = [line for line in pool if not any(stem(line) in reply for reply in dialogue.replies())] or pool
    line = pool[0] if config.narrow else chance.choice(pool)
    return fill(line, replace(scenario, other=_briefly(scenario.other)), cue=cue, feeling=feeling)


WISHES = {
    "advice": "advice",
    "empathy": "warmth",
    "listened": "space",
    "praise": "praise",
    "reflection": "insight",
    "both_sides": "fairness",
    "motives": "reasons",
    "not_at_fault": "backing",
}
"""Hidden intention -> how a thought names what was hinted at."""
MOVES = {
    "question": "ask",
    "restatement": "restate",
    "reflection": "empathise",
    "reassurance": "soothe",
    "praise": "admire",
    "suggestion": "advise",
    "information": "inform",
    "self_disclosure": "share",
    "motives": "explain",
    "siding": "absolve",
    "both_sides": "balance",
    "guided_reflection": "wonder",
    "listening": "listen",
    "referral": "refer",
    "apology": "apologise",
    "hedging": "hedge",
}
"""Support strategy -> how a thought names it."""
HINTED = ("They want {wish}", "Wish: {wish}", "Wants {wish}")
NOTHING_HINTED = ("No hint yet", "Wish unclear")
TAKEN_UP = (", told of {cue}", ", with {cue}")
DECIDED = (", so {move}.", ": {move}.", "; I {move}.")
DETERMINERS = ("the", "your", "that", "those")
"""With which a phrase begins that takes up something told."""


@dataclass(frozen=True, kw_only=True)
class ShownThought:
    """The thought before one reply."""

    text: str
    chosen: tuple[str, ...]
    """The words in it that decide: the wish and the move."""
    copied: tuple[str, ...]
    """The phrase in it that the user said, if any."""


def thoughts(demo: Demonstration, chance: random.Random) -> Iterator[ShownThought]:
    """One thought for each reply of a demonstration; all of it is true of the conversation so far and of the reply."""
    dialogue, copied = demo.dialogue, iter(demo.copied)
    for number, turn in enumerate(dialogue.turns):
        if turn.speaker is Speaker.AGENT:
            yield _thought(replace(dialogue, turns=dialogue.turns[:number]), turn.text, next(copied), chance)


def _thought(before: Dialogue, reply: str, copied: tuple[str, ...], chance: random.Random) -> ShownThought:
    wish = _latest_wish(before)
    cue = next((phrase for phrase in copied if phrase.partition(" ")[0] in DETERMINERS and " " in phrase), "")
    heard = sorted(strategies_in(reply), key=lambda strategy: strategy != "apology")
    moves = [MOVES[strategy] for strategy in heard]
    first = chance.choice(HINTED).format(wish=WISHES[wish]) if wish else chance.choice(NOTHING_HINTED)
    told = chance.choice(TAKEN_UP).format(cue=cue) if cue else ""
    text = f"{first}{told}{chance.choice(DECIDED).format(move=' and '.join(moves))}"
    return ShownThought(text=text, chosen=(*([WISHES[wish]] if wish else []), *moves), copied=(cue,) if cue else ())


def _latest_wish(dialogue: Dialogue) -> str | None:
    """What the user hinted at last, overtly or not; None before any hint."""
    for turn in reversed(dialogue.turns):
        if turn.speaker is Speaker.USER and (wish := hint_in(turn.text, kinds=("overt", "veiled"))):
            return wish
    return None
